//! Functions that are named like questions.

use syn::{
    FnArg, ImplItemFn, ItemFn, ItemImpl, ReturnType, Signature, TraitItemFn,
    spanned::Spanned,
    visit::{self, Visit},
};

use super::{Complaint, source::File};

/// How a question begins.
const QUESTIONS: [&str; 5] = ["is_", "has_", "was_", "are_", "were_"];

/// Complaints about functions of a file that are named like questions, and answer nothing or change
/// what they are asked about.
pub fn check(file: &File) -> Vec<Complaint> {
    let mut functions = Functions {
        file,
        complaints: Vec::new(),
    };
    functions.visit_file(&file.syntax);
    functions.complaints
}

struct Functions<'a> {
    file: &'a File,
    complaints: Vec<Complaint>,
}

impl Functions<'_> {
    fn look(&mut self, signature: &Signature) {
        let name = signature.ident.to_string();
        if !QUESTIONS.iter().any(|question| name.starts_with(question)) {
            return;
        }
        let fault = if matches!(signature.output, ReturnType::Default) {
            "answers nothing"
        } else if takes_self_mutably(signature) {
            "may change what it is asked about"
        } else {
            return;
        };
        self.complaints.push(Complaint {
            place: self.file.place(signature.span().start().line),
            text: format!("`{name}` is named like a question and {fault}: name it by a verb"),
        });
    }
}

/// Whether a method takes `&mut self`.
fn takes_self_mutably(signature: &Signature) -> bool {
    match signature.inputs.first() {
        Some(FnArg::Receiver(receiver)) => {
            receiver.reference.is_some() && receiver.mutability.is_some()
        }
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        // A test is a sentence that must hold: `is_refused_when_full`.
        if !item.attrs.iter().any(|attribute| is_test(attribute.path())) {
            self.look(&item.sig);
        }
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        // A trait's names are checked where it is declared, if that is here.
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.look(&item.sig);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.look(&item.sig);
        visit::visit_trait_item_fn(self, item);
    }
}

fn is_test(path: &syn::Path) -> bool {
    path.segments
        .last()
        .is_some_and(|last| last.ident == "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> usize {
        let file = File {
            path: "a.rs".into(),
            module: Vec::new(),
            syntax: syn::parse_file(text).unwrap(),
        };
        check(&file).len()
    }

    #[test]
    fn questions_answer_and_change_nothing() {
        assert_eq!(complaints("fn is_over(x: u8) {}"), 1);
        assert_eq!(
            complaints("impl A { fn has_ended(&mut self) -> bool { true } }"),
            1
        );
        assert_eq!(complaints("trait A { fn was_cut(&self); }"), 1);
        assert_eq!(
            complaints("impl A { fn is_over(&self) -> bool { true } }"),
            0
        );
        assert_eq!(
            complaints("impl A { fn end(&mut self) {} fn island(&mut self) {} }"),
            0
        );
        assert_eq!(complaints("impl B for A { fn is_over(&mut self) {} }"), 0);
        assert_eq!(complaints("#[test] fn is_refused_when_full() {}"), 0);
        assert_eq!(complaints("#[tokio::test] async fn is_refused() {}"), 0);
    }
}

//! The file that defines what a path names.
//!
//! A path is followed as rustc does, as far as text tells: from the crate's root, the module or an
//! alias of a `use`, along modules and re-exports, to the file in which the item stands. What
//! cannot be followed (another crate's, a macro's, an associated item's) names no file.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Item, UseTree, Visibility};

use super::source::{self, File, Target};

/// Re-exports in a row before a path is given up: a crate that needs more is a riddle.
const MAX_HOPS: usize = 16;

/// A module's names.
#[derive(Default)]
struct Scope {
    /// Names that are defined in the module's file.
    defined: BTreeSet<String>,
    /// Names of `use`, with the path that each stands for.
    aliases: BTreeMap<String, Vec<String>>,
    /// Paths of `use path::*`.
    globs: Vec<Vec<String>>,
}

/// The names of a whole target, by module.
pub struct Names<'a> {
    target: &'a Target,
    scopes: BTreeMap<Vec<String>, (usize, Scope)>,
}

impl<'a> Names<'a> {
    /// Reads every module's definitions and imports.
    pub fn read(target: &'a Target) -> Self {
        let mut scopes = BTreeMap::new();
        for (index, file) in target.files.iter().enumerate() {
            read_scope(&file.syntax.items, file.module.clone(), index, &mut scopes);
        }
        Self { target, scopes }
    }

    /// Index of the file that defines what `path` names in `module`.
    ///
    /// A path that ends at a module names no item, and so no file.
    pub fn definer(&self, module: &[String], path: &[String]) -> Option<usize> {
        self.follow(module.to_vec(), path, 0)
    }

    fn follow(&self, mut module: Vec<String>, path: &[String], hops: usize) -> Option<usize> {
        if hops > MAX_HOPS {
            return None;
        }
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => module.clear(),
                "self" => {}
                "super" => drop(module.pop()?),
                name => {
                    let mut child = module.clone();
                    child.push(name.to_owned());
                    if !self.scopes.contains_key(&child) {
                        return self.item(module, rest, hops);
                    }
                    module = child;
                }
            }
            rest = after;
        }
        None
    }

    /// The file of an item of `module`: its own, or that of the `use` that brings the name.
    fn item(&self, module: Vec<String>, path: &[String], hops: usize) -> Option<usize> {
        let (name, after) = path.split_first()?;
        let (file, scope) = self.scopes.get(&module)?;
        if scope.defined.contains(name) {
            return Some(*file);
        }
        let go_on = |target: &Vec<String>, after: &[String]| {
            let longer = [target, after].concat();
            // An alias of itself (`use serde;`) is another crate's.
            let itself = longer == path;
            (!itself).then(|| self.follow(module.clone(), &longer, hops + 1))?
        };
        match scope.aliases.get(name) {
            Some(target) => go_on(target, after),
            None => scope.globs.iter().find_map(|glob| go_on(glob, path)),
        }
    }

    /// Files of the target.
    pub fn files(&self) -> &'a [File] {
        &self.target.files
    }
}

fn read_scope(
    items: &[Item],
    module: Vec<String>,
    file: usize,
    scopes: &mut BTreeMap<Vec<String>, (usize, Scope)>,
) {
    let mut scope = Scope::default();
    for item in items {
        match item {
            Item::Use(item) => flatten(
                &item.tree,
                &mut Vec::new(),
                &mut |path, alias| match alias {
                    Some(alias) => drop(scope.aliases.insert(alias, path)),
                    None => scope.globs.push(path),
                },
            ),
            Item::Mod(inner) if source::is_test(&inner.attrs) => {}
            Item::Mod(inner) => {
                if let Some((_, items)) = &inner.content {
                    let mut path = module.clone();
                    path.push(inner.ident.to_string());
                    read_scope(items, path, file, scopes);
                }
            }
            other => scope.defined.extend(defined(other)),
        }
    }
    scopes.insert(module, (file, scope));
}

/// Calls `each` for every name that a `use` brings: its path, and the name it has here (none for `*`).
pub fn flatten(
    tree: &UseTree,
    before: &mut Vec<String>,
    each: &mut impl FnMut(Vec<String>, Option<String>),
) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, each);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, each);
            }
        }
        UseTree::Name(name) if name.ident == "self" => {
            each(before.clone(), before.last().cloned());
        }
        UseTree::Name(name) => {
            let mut path = before.clone();
            path.push(name.ident.to_string());
            each(path, Some(name.ident.to_string()));
        }
        UseTree::Rename(rename) => {
            let mut path = before.clone();
            if rename.ident != "self" {
                path.push(rename.ident.to_string());
            }
            each(path, Some(rename.rename.to_string()));
        }
        UseTree::Glob(_) => each(before.clone(), None),
    }
}

fn defined(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Whether a `use` only passes a name on: a facade, which imports nothing for itself.
pub fn is_reexport(visibility: &Visibility) -> bool {
    !matches!(visibility, Visibility::Inherited)
}

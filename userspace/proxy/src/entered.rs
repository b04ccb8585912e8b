//! A flow's entries in everything that is shared.

use std::{io, net::SocketAddr, sync::Arc};

use dataplane::{Application, Resumed, SockCookie};
use flow::{Flow, Newcomer};
use policy::Session;
use telemetry::Rarely;

use super::{
    admission::FlowPermit, context::ProxyContext, keeper::Kept, question::Question, read_on::ReadOn,
};

/// Lines about databases that do not answer a dial: whoever connects decides how often the agent dials.
static NOT_ANSWERED: Rarely = Rarely::new();

/// A flow's entries in everything that is shared. Dropping it removes them, whatever ends the flow.
pub(super) struct Entered {
    pub flow: Arc<Flow>,
    pub shared: Arc<ProxyContext>,
    /// The question that the flow's session has to decide.
    pub question: Option<Box<Question>>,
    /// Set for a flow that another agent has begun.
    pub adoption: Option<Box<Adoption>>,
    /// Set for a flow that another agent has handed over: how it is read on.
    pub reading: Option<Box<ReadOn>>,
    /// The application whose socket is on this host. None: neither side's is.
    pub application: Option<Application>,
    permit: FlowPermit,
}

impl Entered {
    /// Reports that dialling the flow's database has failed.
    pub(super) fn report_failed_dial(&self, backend: Option<SocketAddr>, error: &io::Error) {
        let Self {
            flow,
            shared,
            permit,
            ..
        } = self;
        if dataplane::is_exhaustion(error) {
            permit.mark_unserved();
        } else if let Some(backend) = backend {
            shared
                .backends
                .suspect(backend, format!("dialled: {error}"));
        }
        NOT_ANSWERED.say(|not_said_before| {
            tracing::info!(
                flow = ?flow.id,
                client = %flow.client,
                orig_dst = %flow.orig_dst,
                backend = backend.map(tracing::field::display),
                rule = %flow.rule(),
                %error,
                not_said_before,
                "the database did not answer the dial"
            );
        });
    }

    pub(super) fn new(shared: &Arc<ProxyContext>, newcomer: &Newcomer, permit: FlowPermit) -> Self {
        let flow = shared.flows.enter(newcomer);
        let policy = shared.policy.borrow().clone();
        flow.opt_in(policy.shortcut_of(&newcomer.rule));
        let question = Question::of(newcomer, &policy).map(Box::new);
        if let Some(question) = &question {
            flow.await_session();
            flow.waits_for(question.waits_for(&Session::default()));
        }
        let mut entered = Self::of(shared, flow, newcomer.application.clone(), permit);
        entered.question = question;
        entered
    }

    /// Enters a flow that another agent has begun.
    pub(super) fn adopted(
        shared: &Arc<ProxyContext>,
        flow: Arc<Flow>,
        cookie: SockCookie,
        permit: FlowPermit,
        adoption: Adoption,
    ) -> Self {
        let application = Some(Application::Client(cookie, None));
        let mut entered = Self::of(shared, flow, application, permit);
        entered.adoption = Some(Box::new(adoption));
        entered
    }

    /// Enters a flow that another agent has handed over.
    pub(super) fn handed(
        shared: &Arc<ProxyContext>,
        flow: Arc<Flow>,
        application: Option<Application>,
        permit: FlowPermit,
        reading: ReadOn,
    ) -> Self {
        let mut entered = Self::of(shared, flow, application, permit);
        entered.reading = Some(Box::new(reading));
        entered
    }

    fn of(
        shared: &Arc<ProxyContext>,
        flow: Arc<Flow>,
        application: Option<Application>,
        permit: FlowPermit,
    ) -> Self {
        shared.metrics.flows.open.inc();
        Self {
            flow,
            shared: shared.clone(),
            question: None,
            adoption: None,
            reading: None,
            application,
            permit,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(Application::Client(cookie, _)) = self.application {
            self.shared.answers.forget(cookie);
        }
        self.shared.flows.leave(self.flow.id);
        self.flow.commands.close();
        self.shared.metrics.flows.open.dec();
    }
}

/// An adopted flow's state in the kernel and its hold on the keeper.
pub(super) struct Adoption {
    pub resumed: Resumed,
    pub kept: Kept,
}

//! One connection's side of the protocol: from a request's frame to a response's, with no I/O.

use std::net::{IpAddr, SocketAddr};

use tokio::sync::{broadcast, watch};

use super::body::{Reader, put_bytes, put_string};
use super::clients::Registration;
use super::credentials::Credentials;
use super::database::Database;
use super::failure::{Failure, Result};
use super::plan::{Plan, Prepared};
use super::request::{self, Parameters};
use super::response::{self, MetadataMode, SchemaChange};
use super::scylla::Asked;
use super::system::host_uuid;
use super::versions::MIN_VERSION;
use super::wire::{self, Header};

const FLAG_COMPRESSED: u8 = 0x01;
const FLAG_CUSTOM_PAYLOAD: u8 = 0x04;
/// An event's stream.
const EVENT_STREAM: i16 = -1;

/// State of a connection: what the client has said about itself, and how far it has come.
#[derive(Debug)]
pub(super) struct Session {
    stage: Stage,
    /// Protocol version of STARTUP; 0 before it.
    version: u8,
    keyspace: Option<String>,
    credentials: Option<Credentials>,
    registration: Registration,
    /// Extensions that STARTUP has asked for.
    asked: Asked,
    /// Whether the answer under way has a custom payload.
    has_payload: bool,
    pub(super) events: Option<broadcast::Receiver<SchemaChange>>,
    pub(super) rings: Option<watch::Receiver<Vec<SocketAddr>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fresh,
    Authenticating,
    Ready,
}

/// Next step of the connection, once the answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    /// v5: everything after this answer is in segments.
    StartSegments,
    Close,
}

impl Session {
    pub(super) fn new(credentials: Option<Credentials>, registration: Registration) -> Self {
        Self {
            stage: Stage::Fresh,
            version: 0,
            keyspace: None,
            credentials,
            registration,
            asked: Asked::default(),
            has_payload: false,
            events: None,
            rings: None,
        }
    }

    /// Appends the answer to one request.
    pub(super) fn answer(
        &mut self,
        db: &mut Database,
        header: Header,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Next {
        self.registration.count_request();
        self.has_payload = false;
        let at = wire::begin(
            out,
            header.version.clamp(MIN_VERSION, db.max_version),
            header.stream,
            response::ERROR,
        );
        let next = match self.dispatch(db, header, body, out) {
            Ok((opcode, next)) => {
                wire::set_opcode(out, at, opcode);
                if self.has_payload {
                    wire::set_flags(out, at, FLAG_CUSTOM_PAYLOAD);
                }
                next
            }
            Err(failure) => {
                out.truncate(at + wire::HEADER_LEN);
                response::put_error(out, &failure);
                if failure.is_protocol() {
                    Next::Close
                } else {
                    Next::Continue
                }
            }
        };
        wire::finish(out, at);
        next
    }

    fn dispatch(
        &mut self,
        db: &mut Database,
        header: Header,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(u8, Next)> {
        let version = header.version;
        if self.version != 0 && version != self.version {
            return Err(Failure::protocol(format!(
                "a v{version} frame on a v{} connection",
                self.version
            )));
        }
        if header.flags & FLAG_COMPRESSED != 0 {
            return Err(Failure::protocol("compression was not negotiated"));
        }
        let mut body = Reader::new(body);
        if header.flags & FLAG_CUSTOM_PAYLOAD != 0 && version >= 4 {
            skip_payload(&mut body)?;
        }
        match (header.opcode, self.stage) {
            (request::OPTIONS, _) => {
                let ports = (self.registration.port(), db.addr.port());
                let scylla = db.scylla.as_ref();
                let besides = scylla.map(|scylla| scylla.supported(ports.0, ports.1));
                response::put_supported(out, db.max_version, &besides.unwrap_or_default());
                Ok((response::SUPPORTED, Next::Continue))
            }
            (request::STARTUP, Stage::Fresh) => self.startup(db, version, body, out),
            (request::AUTH_RESPONSE, Stage::Authenticating) => self.authenticate(body, out),
            (request::QUERY, Stage::Ready) => self.query(db, body, out),
            (request::PREPARE, Stage::Ready) => self.prepare(db, body, out),
            (request::EXECUTE, Stage::Ready) => self.execute(db, body, out),
            (request::BATCH, Stage::Ready) => {
                let (items, keyspace) = request::read_batch(&mut body, version)?;
                db.batch(&items, keyspace.or(self.keyspace.as_deref()), out)?;
                Ok((response::RESULT, Next::Continue))
            }
            (request::REGISTER, Stage::Ready) => self.register(db, body),
            (opcode, stage) => Err(Failure::protocol(format!(
                "Unexpected message with opcode {opcode:#04x} ({stage:?})"
            ))),
        }
    }

    fn startup(
        &mut self,
        db: &Database,
        version: u8,
        mut body: Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(u8, Next)> {
        let options = body.string_map()?;
        let option = |name: &str| {
            options
                .iter()
                .find(|(k, _)| k.eq_ignore_ascii_case(name))
                .map(|(_, v)| (*v).to_owned())
        };
        if option("CQL_VERSION").is_none() {
            return Err(Failure::protocol(
                "Missing value CQL_VERSION in STARTUP message",
            ));
        }
        if let Some(algorithm) = option("COMPRESSION") {
            return Err(Failure::protocol(format!(
                "Unknown compression algorithm: {algorithm}"
            )));
        }
        if let Some(scylla) = db.scylla.as_ref().filter(|_| version < 5) {
            self.asked = Asked::of(&options, scylla);
        }
        self.version = version;
        self.registration.update(|client| {
            client.version = version;
            client.driver_name = option("DRIVER_NAME");
            client.driver_version = option("DRIVER_VERSION");
        });
        let next = if version >= 5 {
            Next::StartSegments
        } else {
            Next::Continue
        };
        if self.credentials.is_some() {
            self.stage = Stage::Authenticating;
            put_string(out, "org.apache.cassandra.auth.PasswordAuthenticator");
            return Ok((response::AUTHENTICATE, next));
        }
        self.stage = Stage::Ready;
        Ok((response::READY, next))
    }

    /// SASL PLAIN: `authzid NUL user NUL password`.
    fn authenticate(&mut self, mut body: Reader<'_>, out: &mut Vec<u8>) -> Result<(u8, Next)> {
        let token = body.bytes()?.unwrap_or_default();
        let mut parts = token
            .split(|b| *b == 0)
            .skip(1)
            .map(String::from_utf8_lossy);
        let (user, password) = (
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default(),
        );
        if user.is_empty() || password.is_empty() {
            return Err(Failure::bad_credentials("Password must not be null"));
        }
        let matches = self
            .credentials
            .as_ref()
            .is_some_and(|c| c.user == user && c.password == password);
        if !matches {
            return Err(Failure::bad_credentials(format!(
                "Provided username {user} and/or password are incorrect"
            )));
        }
        self.stage = Stage::Ready;
        self.registration
            .update(|client| client.user = Some(user.into_owned()));
        put_bytes(out, None);
        Ok((response::AUTH_SUCCESS, Next::Continue))
    }

    fn query(
        &mut self,
        db: &mut Database,
        mut body: Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(u8, Next)> {
        let text = body.long_string()?;
        let mut parameters = Parameters::read(&mut body, self.version)?;
        let keyspace = parameters.keyspace.or(self.keyspace.as_deref());
        let plan = db.query_plan(text, keyspace)?;
        self.run(db, &plan, &mut parameters, MetadataMode::Full, out)
    }

    /// Executes a plan, in the request's keyspace if it names one, else in the session's.
    fn run(
        &mut self,
        db: &mut Database,
        plan: &Prepared,
        parameters: &mut Parameters<'_>,
        mode: MetadataMode,
        out: &mut Vec<u8>,
    ) -> Result<(u8, Next)> {
        self.registration.asks_at(parameters.consistency);
        let limited = db
            .scylla
            .as_ref()
            .and_then(|scylla| scylla.limited.as_deref());
        if limited.is_some() && limited == plan.plan.table().map(|t| &*t.name) {
            let is_write = !matches!(plan.plan, Plan::Select(_));
            return Err(self.asked.limit_reached(is_write));
        }
        match parameters.keyspace.map(str::to_owned) {
            mut own @ Some(_) => db.execute(plan, parameters, mode, &mut own, out)?,
            None => db.execute(plan, parameters, mode, &mut self.keyspace, out)?,
        }
        if matches!(plan.plan, Plan::Use(_)) {
            self.registration
                .update(|client| client.keyspace.clone_from(&self.keyspace));
        }
        Ok((response::RESULT, Next::Continue))
    }

    fn prepare(
        &mut self,
        db: &mut Database,
        mut body: Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(u8, Next)> {
        let (text, keyspace) = request::read_prepare(&mut body, self.version)?;
        let prepared = db.prepare(text, keyspace.or(self.keyspace.as_deref()))?;
        response::put_prepared(out, &prepared.told(), self.version, &self.asked);
        Ok((response::RESULT, Next::Continue))
    }

    fn execute(
        &mut self,
        db: &mut Database,
        mut body: Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(u8, Next)> {
        let prepared = db.statements.get(body.short_bytes()?)?;
        let known_metadata = if self.version >= 5 || self.asked.metadata_id {
            Some(body.short_bytes()?)
        } else {
            None
        };
        let mut parameters = Parameters::read(&mut body, self.version)?;
        if let Some(scylla) = &db.scylla
            && self.asked.end_of_execute(prepared.id, &mut body)?
            && prepared
                .plan
                .table()
                .is_some_and(|t| !t.keyspace.starts_with("system"))
        {
            let shard = i32::from(self.registration.port() % scylla.shards.max(1));
            self.asked.put_tablet(host_uuid(db.addr), shard, out);
            self.has_payload = true;
        }
        let out_of_date = known_metadata.is_some_and(|id| id != prepared.result.id);
        let mode = match (parameters.skip_metadata, out_of_date) {
            (true, true) => MetadataMode::Changed,
            (true, false) => MetadataMode::Skip,
            (false, _) => MetadataMode::Full,
        };
        self.run(db, &prepared, &mut parameters, mode, out)
    }

    fn register(&mut self, db: &Database, mut body: Reader<'_>) -> Result<(u8, Next)> {
        for _ in 0..body.u16()? {
            match body.string()? {
                "SCHEMA_CHANGE" => self.events = Some(db.events.subscribe()),
                "TOPOLOGY_CHANGE" => self.rings = Some(db.told_rings()),
                "STATUS_CHANGE" => {}
                other => {
                    return Err(Failure::protocol(format!(
                        "Invalid value '{other}' for Type"
                    )));
                }
            }
        }
        Ok((response::READY, Next::Continue))
    }

    /// Appends an EVENT.
    pub(super) fn tell(&self, change: &SchemaChange, out: &mut Vec<u8>) {
        let at = wire::begin(out, self.version, EVENT_STREAM, response::EVENT);
        change.put_event(out);
        wire::finish(out, at);
    }

    /// Appends an EVENT of a node that is new.
    pub(super) fn tell_node(&self, node: SocketAddr, out: &mut Vec<u8>) {
        let at = wire::begin(out, self.version, EVENT_STREAM, response::EVENT);
        put_string(out, "TOPOLOGY_CHANGE");
        put_string(out, "NEW_NODE");
        let ip = match node.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        // An [inet]: the address behind its length, and the port.
        out.push(ip.len() as u8);
        out.extend(ip);
        out.extend(i32::from(node.port()).to_be_bytes());
        wire::finish(out, at);
    }
}

/// `[bytes map]` before the body.
fn skip_payload(body: &mut Reader<'_>) -> Result<()> {
    for _ in 0..body.u16()? {
        body.string()?;
        body.bytes()?;
    }
    Ok(())
}

//! Asks the kernel for changes of its routing, and what there is of it.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    route::{RouteMessage, RouteProtocol},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::libc;

/// The owner that the agent's rules and routes name: RTPROT numbers from 80 on are free for anybody.
pub(crate) const PROTOCOL: RouteProtocol = RouteProtocol::Other(86);

/// The kernel answers in this; an error's answer repeats the request.
const ANSWER_BYTES: usize = 4096;

/// A part of a list: the kernel fills no more.
const LIST_BYTES: usize = 32 * 1024;

pub(crate) fn add(socket: &Socket, message: RouteNetlinkMessage) -> io::Result<()> {
    match ask(socket, message, NLM_F_CREATE | NLM_F_EXCL) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        answer => answer,
    }
}

/// Deletes a rule or a route. Success if there is none: the host may lack its family, too.
pub(crate) fn delete(socket: &Socket, message: RouteNetlinkMessage) -> io::Result<()> {
    let message = match message {
        RouteNetlinkMessage::NewRule(rule) => RouteNetlinkMessage::DelRule(rule),
        RouteNetlinkMessage::NewRoute(route) => RouteNetlinkMessage::DelRoute(route),
        other => other,
    };
    let absent = [
        libc::ENOENT,
        libc::ESRCH,
        libc::EAFNOSUPPORT,
        libc::EOPNOTSUPP,
    ];
    match ask(socket, message, 0) {
        Err(e) if e.raw_os_error().is_some_and(|n| absent.contains(&n)) => Ok(()),
        answer => answer,
    }
}

/// Sends a request and waits for its acknowledgement.
pub(crate) fn ask(socket: &Socket, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    send(socket, message, NLM_F_ACK | flags)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    socket.recv(&mut answer, 0)?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
    match answer.map_err(io::Error::other)?.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        NetlinkPayload::Error(_) => Ok(()),
        other => Err(io::Error::other(format!("an odd answer: {other:?}"))),
    }
}

/// The routes that are as `like` says: of its family, table, protocol and type. In the calling
/// thread's namespace.
pub(crate) fn routes(like: RouteMessage) -> io::Result<Vec<RouteMessage>> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    // Else the kernel lists all there are.
    socket.set_netlink_get_strict_chk(true)?;
    let wanted = (like.header.table, like.header.protocol, like.header.kind);
    send(&socket, RouteNetlinkMessage::GetRoute(like), NLM_F_DUMP)?;
    let mut found = Vec::new();
    loop {
        let mut part = Vec::with_capacity(LIST_BYTES);
        socket.recv(&mut part, 0)?;
        let mut rest = part.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest);
            let message = message.map_err(io::Error::other)?;
            let bytes = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(bytes.max(1)..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                    let header = &route.header;
                    if (header.table, header.protocol, header.kind) == wanted {
                        found.push(route);
                    }
                }
                _ => {}
            }
        }
    }
}

fn send(socket: &Socket, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(message));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let kernel = SocketAddr::new(0, 0);
    socket.send_to(&bytes, &kernel, 0)?;
    Ok(())
}

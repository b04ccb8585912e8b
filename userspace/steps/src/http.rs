//! One GET over HTTP/1.1, bounded in time and size, for a thread that may wait. No proxy, no redirect.

use std::{io, time::Duration};

use http_body_util::{BodyExt as _, Empty};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{CONNECTION, HOST},
};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    runtime, time,
};

/// The reason why a GET has no answer.
#[derive(Debug, Error)]
pub enum HttpError {
    /// The server cannot be reached.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The connection broke, or the answer is no HTTP.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// The whole answer has not come in time.
    #[error("no answer in {0:?}")]
    Late(Duration),
    /// The body is longer than the caller takes, in bytes.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
    /// The URL names no host.
    #[error("no URL of HTTP")]
    Url,
}

/// Gets a page over a connection that is there already, as [`get`].
///
/// # Errors
/// There is no answer.
pub fn get_by<S>(
    stream: S,
    path: &str,
    timeout: Duration,
    most: usize,
) -> Result<(StatusCode, Vec<u8>), HttpError>
where
    S: Into<Connected>,
{
    let stream = stream.into();
    within(timeout, async {
        match stream {
            Connected::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                let host = stream.peer_addr()?.to_string();
                talk(TcpStream::from_std(stream)?, &host, path, most).await
            }
            Connected::Unix(stream) => {
                stream.set_nonblocking(true)?;
                talk(UnixStream::from_std(stream)?, "localhost", path, most).await
            }
        }
    })
}

/// A connection to a server.
#[derive(Debug)]
pub enum Connected {
    /// By TCP.
    Tcp(std::net::TcpStream),
    /// By a socket of this host.
    Unix(std::os::unix::net::UnixStream),
}

impl From<std::net::TcpStream> for Connected {
    fn from(stream: std::net::TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<std::os::unix::net::UnixStream> for Connected {
    fn from(stream: std::os::unix::net::UnixStream) -> Self {
        Self::Unix(stream)
    }
}

/// Gets what a URL names. Its host is an address: no name is looked up. Returns the status and the body, of at
/// most `most` bytes; the connection is closed.
///
/// # Errors
/// There is no answer.
pub fn get(url: &Uri, timeout: Duration, most: usize) -> Result<(StatusCode, Vec<u8>), HttpError> {
    within(timeout, ask(url, most))
}

fn within<T>(
    timeout: Duration,
    asking: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let answer = time::timeout(timeout, asking).await;
        answer.unwrap_or(Err(HttpError::Late(timeout)))
    })
}

async fn ask(url: &Uri, most: usize) -> Result<(StatusCode, Vec<u8>), HttpError> {
    let host = url.authority().ok_or(HttpError::Url)?.as_str();
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    talk(TcpStream::connect(host).await?, host, path, most).await
}

async fn talk<S>(
    stream: S,
    host: &str,
    path: &str,
    most: usize,
) -> Result<(StatusCode, Vec<u8>), HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (head, mut body) = ask_for(stream, host, path).await?.into_parts();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > most {
            return Err(HttpError::TooLong(most));
        }
        bytes.extend_from_slice(&data);
    }
    Ok((head.status, bytes))
}

/// Asks for a page. The body of the answer is still to come, and may go on; the connection is closed behind it.
///
/// # Errors
/// There is no answer.
pub async fn ask_for<S>(stream: S, host: &str, path: &str) -> Result<Response<Incoming>, HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The request hears of what goes wrong, too.
    tokio::spawn(async { drop(connection.await) });
    let request = Request::get(path)
        .header(HOST, host)
        .header(CONNECTION, "close");
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|_| HttpError::Url)?;
    Ok(sender.send_request(request).await?)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// Serves one connection with these bytes, and gives what it was asked.
    fn served(answer: &'static [u8]) -> (Uri, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/keys?of=shop", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            let mut piece = [0; 1024];
            while !asked.ends_with(b"\r\n\r\n") {
                let n = stream.read(&mut piece).unwrap();
                asked.extend_from_slice(&piece[..n]);
            }
            stream.write_all(answer).unwrap();
            String::from_utf8(asked).unwrap()
        });
        (url.parse().unwrap(), server)
    }

    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn an_answer_is_its_status_and_its_body() {
        let (url, server) =
            served(b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 2\r\n\r\nab");
        let (status, body) = get(&url, PATIENCE, 2).unwrap();
        assert_eq!((status.as_u16(), &body[..]), (302, &b"ab"[..]));
        let asked = server.join().unwrap();
        assert!(asked.starts_with("GET /keys?of=shop HTTP/1.1\r\nhost: 127.0.0.1:"));
    }

    #[test]
    fn a_body_without_a_length_is_bounded_too() {
        let (url, server) = served(b"HTTP/1.1 200 OK\r\n\r\nabc");
        let error = get(&url, PATIENCE, 2).unwrap_err();
        assert!(matches!(error, HttpError::TooLong(2)), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn a_server_that_says_nothing_is_late() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let error = get(&url.parse().unwrap(), Duration::from_millis(20), 2).unwrap_err();
        assert!(matches!(error, HttpError::Late(_)), "{error}");
    }
}

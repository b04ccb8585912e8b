//! Conversations with the embedded node, over sockets.

use cassandra_protocol::frame::Version;
use cql::Compression;
use cql_client::{
    AsRustType as _, ByName as _, Client, Hello, List, NoAnswer, auth_response, probe, startup,
};
use cql_node::{Node, NodeOptions};
use tokio::net::TcpStream;

use super::peer::{VERSIONS, soon};

async fn open(
    node: &Node,
    version: Version,
    auth_response: Option<&[u8]>,
) -> Result<Client<TcpStream>, NoAnswer> {
    let begins = startup(Compression::None);
    let hello = Hello {
        version,
        compression: Compression::None,
        startup: &begins,
        auth_response,
        keyspace: Some("system"),
    };
    let stream = TcpStream::connect(node.addr()).await.unwrap();
    Client::open(stream, &hello, soon()).await
}

#[tokio::test]
async fn the_rings_tables_are_read_in_every_version() {
    let listen = ([127, 0, 0, 1], 0).into();
    let node = Node::start(NodeOptions {
        listen,
        ..NodeOptions::default()
    })
    .unwrap();
    for version in VERSIONS {
        let mut client = open(&node, version, None).await.unwrap();
        let rows = client.query("SELECT * FROM local", soon()).await.unwrap();
        let read = rows.read(|row| {
            let tokens: List = row.r_by_name("tokens").ok()?;
            let tokens: Vec<String> = tokens.as_r_type().ok()?;
            let address: std::net::IpAddr = row.r_by_name("rpc_address").ok()?;
            Some((
                row.r_by_name::<String>("cluster_name").ok()?,
                tokens.len(),
                address,
            ))
        });
        let read = read.unwrap();
        assert_eq!(read.len(), 1);
        assert!(read[0].1 > 0);
        assert_eq!(read[0].2, node.addr().ip());
        let peers = client
            .query("SELECT * FROM peers_v2", soon())
            .await
            .unwrap();
        assert!(peers.is_empty());
        // The connection goes on behind an error.
        let error = client
            .query("SELECT * FROM nothing", soon())
            .await
            .unwrap_err();
        assert!(matches!(error, NoAnswer::Refused { .. }), "{error}");
        let text = "SELECT cluster_name FROM system.local WHERE key = ?";
        let prepared = client.prepare(text, soon()).await.unwrap();
        assert_eq!(prepared.metadata_id.is_some(), version == Version::V5);
        let rows = client
            .execute(&prepared, &[Some(b"local")], soon())
            .await
            .unwrap();
        assert_eq!(rows.len(), 1);
    }
}

#[tokio::test]
async fn a_log_in_is_asked_for_and_checked() {
    let node = Node::start(NodeOptions::of_user("u", "pw")).unwrap();
    for version in VERSIONS {
        let right = auth_response("u", "pw");
        open(&node, version, Some(&right)).await.unwrap();
        let wrong = auth_response("u", "no");
        let error = open(&node, version, Some(&wrong)).await.err().unwrap();
        assert!(
            matches!(error, NoAnswer::Refused { code: 0x0100, .. }),
            "{error}"
        );
        let error = open(&node, version, None).await.err().unwrap();
        assert!(matches!(error, NoAnswer::LoginWanted), "{error}");
    }
}

#[tokio::test]
async fn a_database_that_says_nothing_is_late() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let begins = startup(Compression::None);
    let hello = Hello {
        version: Version::V4,
        compression: Compression::None,
        startup: &begins,
        auth_response: None,
        keyspace: None,
    };
    let until = std::time::Instant::now() + std::time::Duration::from_millis(50);
    let late = Client::open(stream, &hello, until).await.err().unwrap();
    assert!(matches!(late, NoAnswer::Late), "{late}");
}

#[tokio::test]
async fn a_probe_tells_a_database_from_something_else() {
    use tokio::io::AsyncWriteExt as _;

    let node = Node::start(NodeOptions::of_user("u", "pw")).unwrap();
    let stream = TcpStream::connect(node.addr()).await.unwrap();
    probe(stream).await.unwrap();
    let (near, mut far) = tokio::io::duplex(1 << 10);
    far.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .await
        .unwrap();
    let error = probe(near).await.unwrap_err();
    assert_eq!(error.to_string(), "its answer is no CQL");
}

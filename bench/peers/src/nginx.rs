//! nginx's stream module.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context;

use crate::{
    find::{self, Absent, Binary},
    peer::{Launch, MAX_CONNECTIONS, Peer},
};

/// The folder of Debian's modules, for a binary that does not say where it looks.
const MODULES: &str = "/usr/lib/nginx/modules";
const MODULE: &str = "ngx_stream_module.so";
/// The most connections of a worker: a proxied connection is two of nginx's.
const WORKER_CONNECTIONS: u32 = 2 * MAX_CONNECTIONS;
/// The most descriptors of a worker, which has some of its own.
const WORKER_DESCRIPTORS: u32 = WORKER_CONNECTIONS + 256;

/// The peer nginx with `stream`: any TCP.
pub(crate) const NGINX: Peer = Peer {
    name: "nginx",
    about: "stream: copied in user space through a buffer of 16 KiB; a worker process per core",
    is_cql_only: false,
    may_splice: false,
    binary: Binary {
        name: "nginx",
        version_args: &["-v"],
        version_after: "nginx/",
        from: "apt-get install nginx libnginx-mod-stream",
    },
    examine: |found| match module(&found.path) {
        Module::None => Err(Absent {
            why: format!(
                "not installed: {} has no stream module (apt-get install libnginx-mod-stream)",
                found.path.display()
            ),
        }),
        Module::BuiltIn | Module::File(_) => Ok(found),
    },
    launch: |found, setup, fronts| {
        let file = setup.folder.join("nginx.conf");
        let pid = setup.folder.join("nginx.pid");
        let pid = pid.to_str().context("the folder's name is not UTF-8")?;
        let text = configuration(&module(&found.path), pid, fronts, &setup.backends);
        Ok(Launch {
            args: vec![
                "-p".into(),
                setup.folder.clone().into(),
                // Given before the file is read, too: otherwise it opens /var/log/nginx/error.log.
                "-e".into(),
                "stderr".into(),
                "-c".into(),
                file.clone().into(),
            ],
            files: vec![(file, text)],
        })
    },
};

/// The place of the `stream` module.
#[derive(Debug, PartialEq, Eq)]
enum Module {
    BuiltIn,
    File(PathBuf),
    None,
}

fn module(binary: &Path) -> Module {
    module_of(
        &find::ask(binary, &["-V"]).unwrap_or_default(),
        Path::is_file,
    )
}

/// Finds the module in the output of `nginx -V`. A binary that prints nothing counts as one that
/// has it: it will report itself what it lacks.
fn module_of(said: &str, exists: impl Fn(&Path) -> bool) -> Module {
    let mut flags = said.split_whitespace();
    if !said.contains("--with-stream=dynamic") {
        let built_in = flags.any(|flag| flag == "--with-stream");
        let unknown = !said.contains("configure arguments:");
        return if built_in || unknown {
            Module::BuiltIn
        } else {
            Module::None
        };
    }
    let folder = flags
        .find_map(|flag| flag.strip_prefix("--modules-path="))
        .unwrap_or(MODULES);
    let file = Path::new(folder).join(MODULE);
    if exists(&file) {
        Module::File(file)
    } else {
        Module::None
    }
}

/// Buffers, balancing and TCP_NODELAY (on) are its defaults.
fn configuration(
    module: &Module,
    pid: &str,
    fronts: &[SocketAddr],
    backends: &[SocketAddr],
) -> String {
    let mut text = String::new();
    if let Module::File(file) = module {
        text.push_str(&format!("load_module \"{}\";\n", file.display()));
    }
    text.push_str(&format!(
        "daemon off;\nworker_processes auto;\nworker_rlimit_nofile {WORKER_DESCRIPTORS};\n\
         pid \"{pid}\";\nerror_log stderr warn;\n\
         events {{\n    worker_connections {WORKER_CONNECTIONS};\n}}\n\
         stream {{\n    access_log off;\n    proxy_connect_timeout 5s;\n    proxy_timeout 1h;\n"
    ));
    for (front, backend) in fronts.iter().zip(backends) {
        text.push_str(&format!(
            "    server {{\n        listen {front};\n        proxy_pass {backend};\n    }}\n"
        ));
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_where_the_binary_says() {
        let dynamic = "nginx version: nginx/1.22.1\nconfigure arguments: \
                       --modules-path=/opt/m --with-stream=dynamic --with-stream_ssl_module";
        assert_eq!(
            module_of(dynamic, |_| true),
            Module::File("/opt/m/ngx_stream_module.so".into())
        );
        assert_eq!(module_of(dynamic, |_| false), Module::None);
        assert_eq!(
            module_of("configure arguments: --with-stream=dynamic", |_| true),
            Module::File("/usr/lib/nginx/modules/ngx_stream_module.so".into())
        );
    }

    #[test]
    fn a_built_in_module_needs_no_line() {
        assert_eq!(
            module_of("configure arguments: --with-stream --with-x", |_| false),
            Module::BuiltIn
        );
        assert_eq!(
            module_of("configure arguments: --with-stream_ssl_module", |_| true),
            Module::None
        );
    }
}

//! `kubernetes`: the chart by Helm's own program, and agents at a real API server with etcd.
//!
//! Helm, kube-apiserver and kubectl are built once from their Go modules, as `xtask/kubernetes/go.mod` pins them, into
//! target/kubernetes. That takes ten minutes on two processors, so no other chore does it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{
    go, paths,
    run::{capture, cargo, require_root, run as run_command},
    setup::{self, Part},
};

/// Options of `kubernetes`.
#[derive(clap::Args)]
pub struct Args {
    /// Only lint the chart and render it, which needs no API server and no root
    #[arg(long)]
    chart: bool,
}

/// Programs, each with its package.
const HELM: (&str, &str) = ("helm", "helm.sh/helm/v3/cmd/helm");
const SERVERS: [(&str, &str); 2] = [
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
];

/// Module with the kinds that Prometheus Operator adds to an API server, and the sum that it has.
const OPERATOR: (&str, &str) = (
    "github.com/prometheus-operator/prometheus-operator@v0.79.2",
    "h1:H/HCiMS4dXQyiFHw28PFlWMh15YUraL3MFe8u7k7dGA=",
);

/// Kinds of the operator that the chart has objects of.
const OPERATORS: [&str; 2] = ["podmonitors", "prometheusrules"];

/// Version that the API server says it has. A program that is built as a module does not know it by itself.
const VERSION: &str = "v1.34.2";

/// Values with which the chart is rendered, beside none: everything that is optional, and nothing of it.
const VALUES: [&[&str]; 3] = [
    &[],
    &[
        "metrics.podMonitor.enabled=true",
        "metrics.rules.enabled=true",
        "dashboards.enabled=true",
        "podLabels.team=db",
        "podAnnotations.note=n",
        "extraVolumes[0].name=tls",
        "extraVolumes[0].secret.secretName=tls",
        "extraVolumeMounts[0].name=tls",
        "extraVolumeMounts[0].mountPath=/etc/tls",
    ],
    &[
        "policy.fromCluster=false",
        "containers.folders=null",
        "tolerations=null",
    ],
];

/// The command.
pub fn run(args: &Args) -> Result<()> {
    let helm = ensure_one(HELM)?;
    lint(&helm)?;
    if args.chart {
        return Ok(());
    }
    require_root("kubernetes", "runs agents, which load BPF programs")?;
    setup::ensure(&[Part::Build])?;
    ensure()?;
    run_command(cargo().args(["build", "--workspace", "--bins", "--tests"]))
        .context("the workspace does not build")?;
    run_command(
        cargo()
            .args([
                // As the workspace was built: of one package, the features of what it needs are others.
                "test",
                "--workspace",
                "--test",
                "host",
                "kubernetes",
                "--",
                "--nocapture",
            ])
            .env("UNDERPASS_KUBERNETES", home())
            // The agent's own pod, as the chart tells it.
            .envs([
                ("POD_NAME", "underpass-x"),
                ("POD_NAMESPACE", "underpass"),
                ("POD_UID", "0c0ffee0-0000-4000-8000-00000000000a"),
            ])
            .env("UNDERPASS_REQUIRE_ALL", "1"),
    )
    .context("tests failed")
}

/// Builds the programs that are not here as `go.mod` and this file want them.
pub fn ensure() -> Result<()> {
    ensure_one(HELM)?;
    ensure_operators()?;
    SERVERS
        .into_iter()
        .try_for_each(|program| ensure_one(program).map(drop))
}

/// Puts the definitions of [`OPERATORS`] beside the programs, from the module that has them.
fn ensure_operators() -> Result<()> {
    let (module, sum) = OPERATOR;
    let folder = home().join("operator");
    // Written last.
    let stamp = folder.join("copied-from.txt");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == sum) {
        return Ok(());
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let said = go::download(module)?;
    let text = |key: &str| said.get(key).and_then(serde_json::Value::as_str);
    let found = text("Sum").context("go names no sum")?;
    ensure!(found == sum, "{module} has the sum {found}; expected {sum}");
    let examples = Path::new(text("Dir").context("go names no folder")?)
        .join("example/prometheus-operator-crd");
    for kind in OPERATORS {
        let from = examples.join(format!("monitoring.coreos.com_{kind}.yaml"));
        let definition = fs::read(&from);
        let definition = definition.with_context(|| format!("cannot read {}", from.display()))?;
        let to = folder.join(format!("{kind}.yaml"));
        fs::write(&to, definition).with_context(|| format!("cannot write {}", to.display()))?;
    }
    fs::write(&stamp, sum).with_context(|| format!("cannot write {}", stamp.display()))
}

/// The folder of the programs.
fn home() -> PathBuf {
    paths::target().join("kubernetes")
}

fn chart() -> PathBuf {
    paths::root().join("deploy/helm/underpass")
}

fn ensure_one((name, package): (&str, &str)) -> Result<PathBuf> {
    setup::ensure(&[Part::Kubernetes])?;
    let source = paths::root().join("xtask/kubernetes");
    let read = |name: &str| {
        let file = source.join(name);
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let wanted = read("go.mod")? + &read("go.sum")? + VERSION;
    let built = home().join(name);
    // Written last: a program without it is not complete.
    let stamp = home().join(format!("{name}.built-from.txt"));
    if built.exists() && fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(built);
    }
    fs::create_dir_all(home()).with_context(|| format!("cannot make {}", home().display()))?;
    let version = format!("-s -w -X k8s.io/component-base/version.gitVersion={VERSION}");
    run_command(
        go::go_in(&source)?
            .env("CGO_ENABLED", "0")
            .args([
                "build",
                "-mod=readonly",
                "-buildvcs=false",
                "-trimpath",
                "-ldflags",
                &version,
                "-o",
            ])
            .arg(&built)
            .arg(package),
    )
    .with_context(|| format!("cannot build {name}: can Go reach a module proxy? Then try again"))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(built)
}

/// Has Helm look at the chart, and render it with each of [`VALUES`].
fn lint(helm: &Path) -> Result<()> {
    for values in VALUES {
        let with = |command: &str| {
            let mut helm = Command::new(helm);
            helm.args(command.split(' ')).arg(chart());
            for value in values {
                helm.args(["--set", value]);
            }
            helm
        };
        run_command(&mut with("lint --strict"))?;
        let rendered =
            capture(with("template u").args(["--include-crds", "--kube-version", VERSION]))?;
        let rendered = String::from_utf8(rendered).context("helm prints no UTF-8")?;
        for kind in ["DaemonSet", "ServiceAccount", "ConfigMap"] {
            ensure!(
                rendered.contains(&format!("kind: {kind}\n")),
                "the chart has no {kind} with {values:?}"
            );
        }
    }
    eprintln!("kubernetes: the chart is in order");
    Ok(())
}

//! Faults, drawn by a seed: each seed has the same ones in the same order, with the same times.

use std::{
    fs::{self, File},
    io::Write,
    net::TcpStream,
    ops::Range,
    process::Command,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::Duration,
};

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use sandbox::{Netns, run_in};

use super::{
    clients::burst,
    faults::Fault,
    node,
    routes::place,
    run::{PATIENCE, Run, descriptors as open_descriptors, eventually},
};
use crate::{
    common::{self, BINARY},
    keeper::host::keepers,
};

/// Memory that an agent with a limit gets beyond what it has.
const HEADROOM_BYTES: u64 = 1 << 20;

/// Has faults happen, each kind once before one comes again, until there are none. `allowed` returns those that may happen now.
pub fn inject(run: &Run<'_>, pause_ms: Range<u64>, mut allowed: impl FnMut() -> Vec<Fault>) {
    let mut deck: Vec<Fault> = Vec::new();
    for number in 0.. {
        let mut rng = fastrand::Rng::with_seed(run.seed.wrapping_mul(1 << 32) + number);
        let allowed = allowed();
        deck.retain(|fault| allowed.contains(fault));
        if deck.is_empty() {
            deck = allowed;
            rng.shuffle(&mut deck);
        }
        let Some(fault) = deck.pop() else {
            return;
        };
        thread::sleep(Duration::from_millis(rng.u64(pause_ms.clone())));
        let carries = run.kernel_carries();
        // One of several has the flows of an agent before, and alone.
        let kernel_carries =
            carries && (fault != Fault::Keeper || keepers(&run.agent()).len() == 1);
        let from = run.log.now();
        let (name, _) = fault.described();
        let (seed, at) = (run.seed, from.as_secs_f64());
        let title = format!("fault {number} of seed {seed} at {at:.1} s: {name}");
        match happen(fault, run, &mut rng) {
            Ok(particulars) => println!("soak: {title} {particulars}"),
            Err(error) => run.log.finding(format!("{title}: {error:#}")),
        }
        run.log.note_fault(fault, from, kernel_carries);
        if let Err(error) = run.revive_agent() {
            let text = format!("{title}: no agent runs any more: {error:#}");
            return run.log.finding(text);
        }
    }
}

/// Has a fault happen. Returns its particulars.
fn happen(fault: Fault, run: &Run<'_>, rng: &mut fastrand::Rng) -> anyhow::Result<String> {
    let is_variant = rng.bool();
    let mut pause = |ms: Range<u64>| Duration::from_millis(rng.u64(ms));
    match fault {
        Fault::Reload => reload(run, is_variant, rng.u32(500_000..2_000_000)),
        Fault::Mark => mark(run, is_variant, pause(100..1000)),
        Fault::Upgrade => upgrade(run),
        Fault::Kill => kill_agent(run, pause(0..800)),
        Fault::Keeper => kill_keeper(run),
        Fault::Stop => stop(run, pause(200..2000)),
        Fault::Memory => memory(run, pause(500..2000)),
        Fault::Disk => fill_disk(run, pause(300..1500)),
        Fault::Descriptors => descriptors(run, pause(500..2000)),
        Fault::Netns => netns(run),
        Fault::Database => database(run, pause(0..1000)),
        Fault::Burst => {
            burst(run);
            Ok(String::new())
        }
        Fault::Machine => Ok(String::new()),
    }
}

fn reload(run: &Run<'_>, is_bad_first: bool, rate: u32) -> anyhow::Result<String> {
    let agent = run.agent();
    let load = |policy: &str, result: &str| {
        let sample = format!("underpass_reloads_total{{result=\"{result}\"}}");
        let before = agent.metric(&sample)?;
        agent.write_policy(policy)?;
        agent.signal(Signal::SIGHUP)?;
        eventually(|| Ok(agent.metric(&sample)? > before)).context(sample.clone())
    };
    if is_bad_first {
        load("[[rule]]\nname = 7\n", "error")?;
    }
    load(&run.policy(rate), "ok")?;
    Ok(format!("(throttle {rate})"))
}

fn mark(run: &Run<'_>, denies: bool, lasts: Duration) -> anyhow::Result<String> {
    let agent = run.agent();
    let cli = |args: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(args).arg("--control").arg(agent.control());
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{args:?}: {said}");
        anyhow::Ok(())
    };
    if denies {
        let to = format!("to=:{}", run.addrs[place("marked")].port());
        cli(&["mark", &to, "deny", "--for", "1s"])?;
        thread::sleep(Duration::from_secs(1));
        eventually(|| Ok(agent.metric("underpass_marks")? == 0.0))?;
        return Ok("(deny for 1 s)".to_owned());
    }
    // What a mark has changed stays so when it ends.
    cli(&["mark", "rule=marked", "bypass", "--for", "1s"])?;
    thread::sleep(lasts);
    cli(&["mark", "rule=marked", "enrich", "--for", "1s"])?;
    Ok(format!("(bypass for {lasts:?})"))
}

fn upgrade(run: &Run<'_>) -> anyhow::Result<String> {
    run.wait_for_former()?;
    let mut agent = run.agent();
    let former = agent.take_over("")?;
    run.pid.store(agent.pid(), Relaxed);
    *run.former.lock().unwrap() = Some(former);
    Ok(String::new())
}

fn kill_agent(run: &Run<'_>, away: Duration) -> anyhow::Result<String> {
    let mut agent = run.agent();
    agent.kill()?;
    thread::sleep(away);
    agent.restart()?;
    run.pid.store(agent.pid(), Relaxed);
    Ok(format!("(away for {away:?})"))
}

fn kill_keeper(run: &Run<'_>) -> anyhow::Result<String> {
    let keepers = keepers(&run.agent());
    for pid in &keepers {
        // One that has nothing to keep may have ended by itself.
        let _ = kill(
            nix::unistd::Pid::from_raw(pid.cast_signed()),
            Signal::SIGKILL,
        );
    }
    Ok(format!("({} killed)", keepers.len()))
}

fn stop(run: &Run<'_>, lasts: Duration) -> anyhow::Result<String> {
    let agent = run.agent();
    agent.signal(Signal::SIGSTOP)?;
    thread::sleep(lasts);
    agent.signal(Signal::SIGCONT)?;
    Ok(format!("(for {lasts:?})"))
}

fn memory(run: &Run<'_>, lasts: Duration) -> anyhow::Result<String> {
    let Some(memory) = &run.memory else {
        return Ok("(left out: this host accounts no memory by cgroups of version 1)".to_owned());
    };
    let mut agent = run.agent();
    memory.limit(Some(HEADROOM_BYTES))?;
    thread::sleep(lasts);
    memory.limit(None)?;
    if !run.is_dead(agent.pid()) {
        return Ok(format!("(for {lasts:?})"));
    }
    agent.kill()?;
    agent.restart()?;
    run.pid.store(agent.pid(), Relaxed);
    Ok(format!("(for {lasts:?}: the kernel has killed the agent)"))
}

fn fill_disk(run: &Run<'_>, lasts: Duration) -> anyhow::Result<String> {
    let others = run.disk.join("others");
    let mut file = File::create(&others)?;
    let block = vec![0; 1 << 14];
    while file.write_all(&block).is_ok() {}
    thread::sleep(lasts);
    fs::remove_file(&others)?;
    Ok(format!("(for {lasts:?})"))
}

fn descriptors(run: &Run<'_>, lasts: Duration) -> anyhow::Result<String> {
    let agent = run.agent();
    let pid = Pid::from_raw(agent.pid().cast_signed());
    // The other limit stays: raised again, it would take a capability.
    let limits = fs::read_to_string(format!("/proc/{}/limits", agent.pid()))?;
    let most = limits.lines().find_map(|line| {
        let rest = line.strip_prefix("Max open files")?;
        rest.split_whitespace().nth(1)?.parse().ok()
    });
    // The next one would have a number that is too large, unless one is closed.
    let none = Rlimit {
        current: open_descriptors(agent.pid()),
        maximum: most,
    };
    let before = prlimit(pid, Resource::Nofile, none)?;
    thread::sleep(lasts);
    prlimit(pid, Resource::Nofile, before)?;
    Ok(format!("(for {lasts:?})"))
}

fn netns(run: &Run<'_>) -> anyhow::Result<String> {
    let netns = Netns::new()?;
    // A namespace without a process is nobody's: clients are threads of the test.
    let sleeps = || Command::new("sleep").arg("3600").spawn();
    let mut resident = run_in(Some(&netns), Some(&run.sandbox.cgroup), sleeps)??;
    let visited = visits(run, &netns);
    resident.kill()?;
    resident.wait()?;
    visited.map(|()| String::new())
}

/// Has clients of a namespace be served there, with a database of their own.
fn visits(run: &Run<'_>, netns: &Netns) -> anyhow::Result<()> {
    let to = run.addrs[place("changed")];
    let _node = run_in(Some(netns), None, || node(to))??;
    let visit = || {
        let stream = TcpStream::connect_timeout(&to, PATIENCE);
        stream.is_ok_and(|mut stream| common::works(&mut stream))
    };
    let visits = || {
        // The first one is refused, by its rule's `fail`: the agent comes then.
        eventually(|| Ok(visit())).context("the namespace is not served")?;
        for _ in 0..5 {
            ensure!(
                visit(),
                "a connection in a namespace that is served does not work"
            );
        }
        anyhow::Ok(())
    };
    run_in(Some(netns), Some(&run.sandbox.cgroup), visits)?
}

fn database(run: &Run<'_>, away: Duration) -> anyhow::Result<String> {
    let mut mortal = run.mortal.lock().unwrap();
    drop(mortal.take());
    thread::sleep(away);
    let addr = run.addrs[place("mortal")];
    eventually(|| {
        *mortal = run.sandbox.server(|| node(addr))?.ok();
        Ok(mortal.is_some())
    })?;
    Ok(format!("(away for {away:?})"))
}

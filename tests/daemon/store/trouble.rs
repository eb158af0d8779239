//! Directories that cannot be used, disks that are full or fail, damage, and an exhausted budget.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::support::{Daemon, command, fails, now, post, request, traces};
use crate::support::account::{Account, sum};
use crate::support::daemon::{comes_true, until};

#[test]
fn a_directory_that_cannot_be_used_is_named_with_its_setting() {
    let store = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(store.path(), &[]);
    let text = fails(store.path(), &[]);
    assert!(text.contains("`store.directory`") && text.contains("in use"), "{text}");
    daemon.ends_well();
    let file = store.path().join("lock");
    let text = fails(&file, &[]);
    assert!(text.contains("`store.directory`") && text.contains("lock"), "{text}");
    let text = fails(Path::new(""), &[]);
    assert!(text.contains("`store.directory`"), "{text}");
}

#[test]
fn a_daemon_that_recovers_its_store_can_be_stopped() {
    let store = tempfile::tempdir().unwrap();
    let marks = store.path().join("end.marks");
    assert!(Command::new("mkfifo").arg(&marks).status().unwrap().success());
    let mut process = command(store.path(), &[]).spawn().unwrap();
    // This waits until the recovery reads it, which then never ends.
    let marks = fs::File::options().write(true).open(&marks).unwrap();
    let id = process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let has_ended = comes_true(|| process.try_wait().unwrap().is_some());
    let ended = process.try_wait().unwrap().and_then(|status| status.code());
    // Without this it would wait for the end.
    drop(marks);
    process.wait().unwrap();
    assert_eq!((has_ended, ended), (true, Some(0)));
}

#[test]
fn files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let store = parent.path().join("made");
    let daemon = Daemon::start(&store, &[]);
    assert_eq!(post(&daemon.otlp_http, &request(0, now())).unwrap().0, 200);
    daemon.ends_well();
    assert_eq!(fs::metadata(&store).unwrap().permissions().mode() & 0o777, 0o700);
    let (mut folders, mut files) = (vec![store], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            if entry.file_type().unwrap().is_dir() {
                assert_eq!(mode, 0o700, "{entry:?}");
                folders.push(entry.path());
            } else {
                assert_eq!(mode, 0o600, "{entry:?}");
                files += 1;
            }
        }
    }
    assert!(files > 1, "{files}");
}

/// Posts a request and adds it to the account; the answer.
fn posted(daemon: &Daemon, body: &[u8], account: &mut Account) -> (u16, String) {
    let (status, answer) = post(&daemon.otlp_http, body).unwrap();
    account.answered(body, status);
    (status, answer)
}

/// Spans of done traces, which are roots and calls of tools.
fn shown(page: &str) -> u64 {
    sum(page, "agentgauge_traces_total", "") + sum(page, "agentgauge_tool_calls_total", "")
}

#[test]
fn a_full_disk_refuses_for_now_and_loses_nothing_when_there_is_room_again() {
    let store = tempfile::tempdir().unwrap();
    // No file can grow beyond this; to the log it is a disk without room.
    let mut shell = Command::new("sh");
    let script = "ulimit -S -f 40; exec \"$0\" \"$@\"";
    let inner = command(store.path(), &[("AGENTGAUGE__LOG__LEVEL", "error")]);
    shell.args(["-c", script]).arg(inner.get_program()).args(inner.get_args());
    shell.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let daemon = Daemon::of(shell.stdout(Stdio::piped()).spawn().unwrap());
    let base = now();
    let (mut acknowledged, mut account) = (0, Account::default());
    let mut sent = |number| posted(&daemon, &request(number, base), &mut account);
    loop {
        match sent(acknowledged) {
            (200, _) => acknowledged += 1,
            (503, answer) => break assert!(answer.to_lowercase().contains("retry-after")),
            (status, answer) => panic!("{status}: {answer}"),
        }
        assert!(acknowledged < 1_000, "the limit never bites");
    }
    assert!(daemon.metric("agentgauge_store_refused_total{reason=\"write\"}") > 0.5);
    let id = daemon.process.id().to_string();
    assert!(
        Command::new("prlimit")
            .args(["--fsize=unlimited", "--pid", &id])
            .status()
            .unwrap()
            .success()
    );
    // What was on its way to the disk may still be refused.
    until(|| sent(acknowledged).0 == 200);
    acknowledged += 1;
    // A trace that is whole is shown.
    if acknowledged % 2 == 1 {
        assert_eq!(sent(acknowledged).0, 200);
        acknowledged += 1;
    }
    account.comes_to_add_up(|| daemon.get("/metrics"), shown);
    for more in 0..20 {
        assert_eq!(post(&daemon.otlp_http, &request(acknowledged + more, base)).unwrap().0, 200);
    }
    acknowledged += 20;
    daemon.dies();
    let daemon = Daemon::start(store.path(), &[]);
    let shown = traces(&daemon.sessions());
    assert!((0..acknowledged).all(|number| shown.contains(&(number / 2))), "{shown:?}");
}

#[test]
fn a_directory_that_was_away_for_a_while_is_used_again() {
    let parent = tempfile::tempdir().unwrap();
    let (store, away) = (parent.path().join("store"), parent.path().join("away"));
    let mut inner = command(&store, &[("AGENTGAUGE__STORE__SNAPSHOT_SPANS", "10")]);
    let mut daemon = Daemon::of(inner.stderr(Stdio::piped()).spawn().unwrap());
    let (base, mut acknowledged) = (now(), 0);
    let mut sends = |daemon: &Daemon| {
        let (status, answer) = post(&daemon.otlp_http, &request(acknowledged, base)).unwrap();
        acknowledged += usize::from(status == 200);
        (status, answer, acknowledged)
    };
    for round in 0..3 {
        assert_eq!(sends(&daemon).0, 200);
        fs::rename(&store, &away).unwrap();
        if round == 1 {
            // Another one in its place is not its own.
            fs::create_dir(&store).unwrap();
        }
        if round < 2 {
            let (status, answer, _) = sends(&daemon);
            assert!(status == 503 && answer.contains("`store.directory` is not there"), "{answer}");
        }
        // It is noticed although nothing arrives.
        until(|| !daemon.is_ready());
        assert!(daemon.get("/readyz").contains("`store.directory` was removed, renamed"));
        assert!(daemon.metric("agentgauge_store_failing") > 0.5);
        if round == 1 {
            assert_eq!(fs::read_dir(&store).unwrap().count(), 0, "it is somebody else's");
            fs::remove_dir(&store).unwrap();
        }
        fs::rename(&away, &store).unwrap();
        until(|| daemon.is_ready());
    }
    assert!(daemon.metric("agentgauge_store_refused_total{reason=\"directory\"}") > 1.5);
    let snapshots = |label| sum(&daemon.get("/metrics"), "agentgauge_store_snapshots_total", label);
    let (begun, before) = (now(), snapshots("written"));
    until(|| {
        for _ in 0..20 {
            sends(&daemon);
        }
        snapshots("written") > before
    });
    let acknowledged = sends(&daemon).2;
    daemon.signal("-TERM");
    assert_eq!(daemon.process.wait().unwrap().code(), Some(0));
    // A snapshot that lacks a section waits for it for a minute.
    assert!(now() - begun < 50_000_000_000, "{} ns", now() - begun);
    let mut said = String::new();
    daemon.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let refusals = said.lines().filter(|line| line.contains("requests are refused until")).count();
    assert_eq!(refusals, 3, "{said}");
    let daemon = Daemon::start(&store, &[]);
    let shown = traces(&daemon.sessions());
    assert!((0..acknowledged).all(|number| shown.contains(&(number / 2))), "{shown:?}");
}

#[test]
fn a_stop_without_the_directory_is_an_error() {
    let parent = tempfile::tempdir().unwrap();
    let (store, away) = (parent.path().join("store"), parent.path().join("away"));
    for is_replaced in [false, true] {
        let mut inner = command(&store, &[]);
        let mut daemon = Daemon::of(inner.stderr(Stdio::piped()).spawn().unwrap());
        assert_eq!(post(&daemon.otlp_http, &request(0, now())).unwrap().0, 200);
        fs::rename(&store, &away).unwrap();
        if is_replaced {
            fs::create_dir(&store).unwrap();
        }
        daemon.signal("-TERM");
        assert_eq!(daemon.process.wait().unwrap().code(), Some(1));
        let mut said = String::new();
        daemon.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("put the directory back before the next start"), "{said}");
        drop(daemon);
        if is_replaced {
            assert_eq!(fs::read_dir(&store).unwrap().count(), 0, "it is somebody else's");
            fs::remove_dir(&store).unwrap();
        }
        fs::rename(&away, &store).unwrap();
        let daemon = Daemon::start(&store, &[]);
        assert_eq!(traces(&daemon.sessions()), [0].into());
        daemon.ends_well();
    }
}

#[test]
fn files_that_are_removed_under_the_daemon_are_written_anew() {
    for what in ["end.marks", "log-", "snapshot-", ""] {
        let store = tempfile::tempdir().unwrap();
        let (base, mut acknowledged) = (now(), 0);
        let mut sends = |daemon: &Daemon| {
            for _ in 0..10 {
                assert_eq!(post(&daemon.otlp_http, &request(acknowledged, base)).unwrap().0, 200);
                acknowledged += 1;
            }
            acknowledged
        };
        // The stop writes a snapshot; so soon after the start none is due.
        let daemon = Daemon::start(store.path(), &[]);
        sends(&daemon);
        daemon.ends_well();
        let daemon = Daemon::start(store.path(), &[]);
        sends(&daemon);
        let mut gone = 0;
        for entry in fs::read_dir(store.path()).unwrap() {
            let entry = entry.unwrap();
            let is_file = entry.file_type().unwrap().is_file();
            if is_file && entry.file_name().to_str().unwrap().starts_with(what) {
                fs::remove_file(entry.path()).unwrap();
                gone += 1;
            }
        }
        assert!(gone > 0, "{what}");
        let written =
            |label| sum(&daemon.get("/metrics"), "agentgauge_store_snapshots_total", label);
        until(|| written("written") > 0);
        assert!(written("written") > 0, "{what}");
        assert!(daemon.metric("agentgauge_store_files_missing_total") > 0.5, "{what}");
        let acknowledged = sends(&daemon);
        daemon.dies();
        let daemon = Daemon::start(store.path(), &[]);
        let shown = traces(&daemon.sessions());
        assert!((0..acknowledged).all(|number| shown.contains(&(number / 2))), "{what}: {shown:?}");
        daemon.ends_well();
    }
}

/// Calls that say that there is room for a few bytes of a file at most, as long as another one is there.
const FULL_DISK: &str = r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <stdlib.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    ssize_t write(int fd, const void *bytes, size_t count) {
        struct stat is;
        if (fstat(fd, &is) == 0 && S_ISREG(is.st_mode) && count > 128 && access(getenv("BROKEN_DISK"), F_OK) == 0) {
            errno = ENOSPC;
            return -1;
        }
        return syscall(SYS_write, fd, bytes, count);
    }
"#;

/// Compiles such calls; returns the library, and the file that switches them on.
#[cfg(target_os = "linux")]
fn broken(tools: &Path, calls: &str) -> [std::path::PathBuf; 2] {
    let [source, library, broken] = ["calls.c", "calls.so", "broken"].map(|name| tools.join(name));
    fs::write(&source, calls).unwrap();
    // As the crate's own parts in C are compiled.
    let compiler =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiler.unwrap().success());
    [library, broken]
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_called_so_everywhere_and_the_daemon_goes_on_by_itself() {
    let (store, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [library, full] = broken(tools.path(), FULL_DISK);
    let environment =
        [("LD_PRELOAD", library.to_str().unwrap()), ("BROKEN_DISK", full.to_str().unwrap())];
    let mut inner = command(store.path(), &environment);
    let mut daemon = Daemon::of(inner.stderr(Stdio::piped()).spawn().unwrap());
    let (base, mut account) = (now(), Account::default());
    assert_eq!(posted(&daemon, &request(0, base), &mut account).0, 200);
    assert!(daemon.is_ready());
    fs::write(&full, "").unwrap();
    for _ in 0..3 {
        let (status, answer) = posted(&daemon, &request(1, base), &mut account);
        assert!(status == 503 && answer.to_lowercase().contains("retry-after"), "{answer}");
        assert!(answer.contains("the disk of `store.directory` is full"), "{answer}");
    }
    assert!(daemon.metric("agentgauge_requests_refused_total{reason=\"disk_full\"}") > 2.5);
    assert!(daemon.metric("agentgauge_store_refused_total{reason=\"disk_full\"}") > 2.5);
    // It looks again meanwhile, and a few bytes would find room; a snapshot, which would make room, finds none.
    assert!((0..1_000).all(|_| !daemon.is_ready()));
    until(|| daemon.metric("agentgauge_store_snapshot_failing") > 0.5);
    assert!(daemon.metric("agentgauge_store_snapshot_failing") > 0.5 && !daemon.is_ready());
    assert!(daemon.metric("agentgauge_store_failing") > 0.5);
    // Nobody sends anything.
    fs::remove_file(&full).unwrap();
    let looked = (0..1_000).any(|_| {
        std::thread::park_timeout(Duration::from_millis(20));
        daemon.is_ready()
    });
    assert!(looked, "it stays as it was");
    assert!(daemon.metric("agentgauge_store_failing") < 0.5);
    assert_eq!(posted(&daemon, &request(1, base), &mut account).0, 200);
    account.comes_to_add_up(|| daemon.get("/metrics"), shown);
    let _ = daemon.process.kill();
    let mut said = String::new();
    daemon.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let errors = said.lines().filter(|line| line.contains("ERROR") && line.contains("is full"));
    assert_eq!(errors.count(), 1, "{said}");
    assert!(said.contains("a snapshot could not be written error=No space left"), "{said}");
    drop(daemon);
    let daemon = Daemon::start(store.path(), &[]);
    assert_eq!(traces(&daemon.sessions()), [0].into());
}

/// Calls that simulate a disk with this many bytes for all files of the store.
const SMALL_DISK: &str = r#"
    #define _GNU_SOURCE
    #include <dirent.h>
    #include <errno.h>
    #include <stdlib.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static long used(void) {
        DIR *store = opendir(getenv("AGENTGAUGE__STORE__DIRECTORY"));
        struct dirent *entry;
        struct stat is;
        long bytes = 0;
        while (store && (entry = readdir(store)))
            if (fstatat(dirfd(store), entry->d_name, &is, 0) == 0 && S_ISREG(is.st_mode)) bytes += is.st_size;
        if (store) closedir(store);
        return bytes;
    }
    ssize_t write(int fd, const void *bytes, size_t count) {
        struct stat is;
        if (fstat(fd, &is) == 0 && S_ISREG(is.st_mode) && used() + (long)count > atol(getenv("BROKEN_DISK"))) {
            errno = ENOSPC;
            return -1;
        }
        return syscall(SYS_write, fd, bytes, count);
    }
"#;

/// Nobody frees anything, and no snapshot is due for the size of the log.
#[cfg(target_os = "linux")]
#[test]
fn on_a_full_disk_a_snapshot_makes_room_of_the_log() {
    let (store, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [library, _] = broken(tools.path(), SMALL_DISK);
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        // Twelve records fit, and then a snapshot but no thirteenth record.
        ("BROKEN_DISK", "388000"),
        ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "1000000000"),
        ("AGENTGAUGE__ASSEMBLE__KEEP_CONTENT", "false"),
    ];
    let daemon = Daemon::start(store.path(), &environment);
    // With an unknown field: nothing in memory, 30 kB in the log.
    let unknown = [&[0xfa, 0x07, 0xb0, 0xea, 0x01][..], &[b'x'; 30_000]].concat();
    let large = [request(1, now()), unknown].concat();
    let status = || post(&daemon.otlp_http, &large).unwrap().0;
    assert!((0..100).any(|_| status() == 503), "the limit never bites");
    until(|| status() == 200);
    until(|| daemon.is_ready());
    assert!(daemon.is_ready() && status() == 200);
    assert!(daemon.metric("agentgauge_store_refused_total{reason=\"disk_full\"}") > 0.5);
    assert!(daemon.metric("agentgauge_store_snapshots_total{outcome=\"written\"}") > 0.5);
    drop(daemon);
    let daemon = Daemon::start(store.path(), &[]);
    assert_eq!(traces(&daemon.sessions()), [0].into());
}

/// The log alone has filled the disk before there was a snapshot.
#[cfg(target_os = "linux")]
#[test]
fn a_start_on_a_full_disk_takes_no_byte() {
    let (store, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [library, _] = broken(tools.path(), SMALL_DISK);
    let base = now();
    let daemon = Daemon::start(store.path(), &[]);
    assert_eq!(post(&daemon.otlp_http, &request(0, base)).unwrap().0, 200);
    daemon.dies();
    let full = [("LD_PRELOAD", library.to_str().unwrap()), ("BROKEN_DISK", "0")];
    for _ in 0..2 {
        let daemon = Daemon::start(store.path(), &full);
        until(|| daemon.get("/readyz").contains("the disk of `store.directory` is full"));
        let said = daemon.get("/readyz");
        assert!(said.contains("the disk of `store.directory` is full"), "{said}");
        let (status, answer) = post(&daemon.otlp_http, &request(1, base)).unwrap();
        assert!(
            status == 503 && answer.contains("the disk of `store.directory` is full"),
            "{answer}"
        );
        assert_eq!(traces(&daemon.sessions()), [0].into());
        until(|| daemon.metric("agentgauge_store_snapshot_failing") > 0.5);
        daemon.ends_well();
        let mut files = fs::read_dir(store.path()).unwrap();
        assert!(
            files.all(|file| !file.unwrap().file_name().to_str().unwrap().starts_with("snapshot-"))
        );
    }
    let daemon = Daemon::start(store.path(), &[]);
    assert_eq!(post(&daemon.otlp_http, &request(1, base)).unwrap().0, 200);
    assert_eq!(traces(&daemon.sessions()), [0].into());
}

/// Calls that say that a sync failed, as long as a file is there.
const BROKEN_SYNC: &str = r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <stdlib.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    static int broken(void) { return access(getenv("BROKEN_DISK"), F_OK) == 0; }
    int fsync(int fd) { errno = EIO; return broken() ? -1 : syscall(SYS_fsync, fd); }
    int fdatasync(int fd) { errno = EIO; return broken() ? -1 : syscall(SYS_fdatasync, fd); }
"#;

/// The results of a disk after a failed sync cannot be trusted: it may have dropped what it could not write.
#[cfg(target_os = "linux")]
#[test]
fn a_sync_that_failed_ends_the_process_with_an_error_and_nothing_acknowledged_is_lost() {
    let (store, tools) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [library, broken] = broken(tools.path(), BROKEN_SYNC);
    let environment = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("BROKEN_DISK", broken.to_str().unwrap()),
        ("AGENTGAUGE__LOG__LEVEL", "error"),
    ];
    let mut inner = command(store.path(), &environment);
    let mut daemon = Daemon::of(inner.stderr(Stdio::piped()).spawn().unwrap());
    let (base, acknowledged) = (now(), 40);
    for number in 0..acknowledged {
        assert_eq!(post(&daemon.otlp_http, &request(number, base)).unwrap().0, 200);
    }
    fs::write(&broken, "").unwrap();
    // It ends, so that it may have no time to answer.
    let answer = post(&daemon.otlp_http, &request(acknowledged, base));
    assert!(answer.is_none_or(|(status, _)| status == 503));
    let mut said = String::new();
    daemon.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(daemon.process.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("`store.directory`") && said.contains("failed to sync"), "{said}");
    drop(daemon);
    let daemon = Daemon::start(store.path(), &[]);
    let shown = traces(&daemon.sessions());
    assert!((0..acknowledged).all(|number| shown.contains(&(number / 2))), "{shown:?}");
}

#[test]
fn damage_in_the_middle_is_named_and_can_be_skipped() {
    let store = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(store.path(), &[]);
    for number in 0..40 {
        assert_eq!(post(&daemon.otlp_http, &request(number, now())).unwrap().0, 200);
    }
    daemon.dies();
    let logs = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("log-");
    let log = fs::read_dir(store.path()).unwrap().map(Result::unwrap).find(logs).unwrap().path();
    let mut bytes = fs::read(&log).unwrap();
    bytes[2_000] ^= 4;
    fs::write(&log, bytes).unwrap();
    let text = fails(store.path(), &[]);
    let name = log.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(name) && text.contains("byte") && text.contains("skip"), "{text}");
    let daemon = Daemon::start(store.path(), &[("AGENTGAUGE__STORE__DAMAGED_RECORDS", "skip")]);
    let count =
        |what: &str| daemon.metric(&format!("agentgauge_store_recovered{{what=\"{what}\"}}"));
    assert!((0.5..1.5).contains(&count("lost_records")) && count("records") > 38.5);
    starts_after_a_kill(store.path(), daemon);
}

/// Once a daemon that skipped damage has written a snapshot, which it does at once, the next one finds none, also after a kill.
fn starts_after_a_kill(store: &Path, daemon: Daemon) {
    let written = "agentgauge_store_snapshots_total{outcome=\"written\"} ";
    until(|| daemon.get("/metrics").contains(written));
    daemon.dies();
    let daemon = Daemon::start(store, &[]);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"lost_records\"}") < 0.5);
}

#[test]
fn an_end_of_the_log_that_is_gone_is_refused_or_counted_and_shown() {
    let store = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(store.path(), &[]);
    for number in 0..40 {
        assert_eq!(post(&daemon.otlp_http, &request(number, now())).unwrap().0, 200);
    }
    daemon.dies();
    let files = fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_log = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "wal");
    let log = files.filter(is_log).max().unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let half = bytes.len() / 2;
    bytes[half..].fill(0);
    fs::write(&log, bytes).unwrap();
    let text = fails(store.path(), &[]);
    // "records 21 to 40 were acknowledged"; a record of the time may come after the last request.
    let (range, _) = text.split_once(" were acknowledged").unwrap();
    let (_, range) = range.rsplit_once("records ").unwrap();
    let (first, last) = range.split_once(" to ").unwrap();
    let (first, last): (f64, f64) = (first.parse().unwrap(), last.parse().unwrap());
    assert!(last > 39.5 && text.contains("skip"), "{text}");
    let daemon = Daemon::start(store.path(), &[("AGENTGAUGE__STORE__DAMAGED_RECORDS", "skip")]);
    let count =
        |what: &str| daemon.metric(&format!("agentgauge_store_recovered{{what=\"{what}\"}}"));
    let (lost, found) = (count("lost_records"), count("records"));
    assert!(lost > 10.0 && (lost - (last - first + 1.0)).abs() < 0.5, "{lost} of {text}");
    // Records of the time before them are not among those that were found.
    assert!(found > first - 1.5 - (last - 40.0) && found < first - 0.5, "{found} of {text}");
    let ready = daemon.get("/readyz");
    assert!(ready.contains(&format!("ready, but {lost} acknowledged records")), "{ready}");
    starts_after_a_kill(store.path(), daemon);
}

#[test]
fn marks_of_the_end_that_are_gone_are_refused_or_told() {
    let store = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(store.path(), &[]);
    assert_eq!(post(&daemon.otlp_http, &request(1, now())).unwrap().0, 200);
    daemon.ends_well();
    fs::write(store.path().join("end.marks"), "").unwrap();
    let text = fails(store.path(), &[]);
    assert!(text.contains("end.marks is missing or damaged") && text.contains("skip"), "{text}");
    let skip = ("AGENTGAUGE__STORE__DAMAGED_RECORDS", "skip");
    let daemon = Daemon::start(store.path(), &[skip]);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"lost_marks\"}") > 0.5);
    assert_eq!(traces(&daemon.sessions()), [0].into());
    daemon.ends_well();
    let daemon = Daemon::start(store.path(), &[]);
    assert!(daemon.metric("agentgauge_store_recovered{what=\"lost_marks\"}") < 0.5);
}

#[test]
fn over_its_budget_it_refuses_for_now_and_goes_on_when_a_snapshot_has_freed_some() {
    let store = tempfile::tempdir().unwrap();
    let environment = [
        ("AGENTGAUGE__INGEST__MAX_REQUEST_BYTES", "65536"),
        ("AGENTGAUGE__INGEST__MAX_DECODED_BYTES", "67108864"),
        ("AGENTGAUGE__STORE__MAX_BYTES", "1200000"),
        // Only the budget asks for one.
        ("AGENTGAUGE__STORE__SNAPSHOT_BYTES", "1000000000"),
    ];
    let daemon = Daemon::start(store.path(), &environment);
    let (base, mut refused, mut number) = (now(), 0, 0);
    let mut account = Account::default();
    while refused < 3 || number < 4_000 {
        match posted(&daemon, &request(number % 300, base), &mut account) {
            (200, _) => number += 1,
            (503, answer) => {
                assert!(answer.to_lowercase().contains("retry-after"), "{answer}");
                refused += 1;
                std::thread::park_timeout(Duration::from_millis(20));
            }
            (status, answer) => panic!("{status}: {answer}"),
        }
        if number >= 20_000 {
            panic!("the budget never bites");
        }
    }
    assert!(daemon.metric("agentgauge_store_refused_total{reason=\"budget\"}") > 2.5);
    assert!(daemon.metric("agentgauge_store_snapshots_total{outcome=\"written\"}") > 0.5);
    let size = |entry: fs::DirEntry| entry.metadata().unwrap().len();
    let bytes: u64 = fs::read_dir(store.path()).unwrap().map(|entry| size(entry.unwrap())).sum();
    assert!(bytes < 1_300_000, "{bytes}");
    account.comes_to_add_up(|| daemon.get("/metrics"), shown);
    daemon.ends_well();
}

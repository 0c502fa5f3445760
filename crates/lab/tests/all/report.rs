//! `shootdown report` as its users meet it: one page, whatever the recording says.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use shootdown_recording::record::{Call, Event, FaultCode, Left, Owner, Record, SpaceId, TaskId};
use shootdown_recording::{Ended, Header, Source, Writer};
use tempfile::TempDir;

const HOSTILE: &str = "<script>alert(\"1\")</script>'&\u{1b}[2J\n\u{202e}";
/// The same without what no file's name can have.
const HOSTILE_NAME: &str = "<b onclick='x'>\"&\u{1b}[2J\n.shootdown";

const PAGE: u64 = 0x7f00_0000_0000;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn report(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shootdown"));
    command.args(["report", "--quick"]).args(arguments).current_dir(folder);
    command.output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// The page that came of it, written to `report.html`.
fn page(folder: &Path, arguments: &[&str]) -> String {
    let output = report(folder, arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.ends_with("\n\nreport: report.html\n"), "{said}");
    // What a recording says must not act on a terminal either.
    assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
    fs::read_to_string(folder.join("report.html")).expect("the page")
}

/// Two threads on two CPUs, one of which gives back the page that both have touched.
fn record(path: &Path, cpus: u32, words: &str) {
    let header = Header {
        recorder: words.to_owned(),
        source: Source::Tracefs,
        kernel: words.to_owned(),
        processor: words.to_owned(),
        cpus,
        command: vec![words.to_owned(), words.to_owned()],
    };
    let (first, second, space) = (TaskId(1), TaskId(2), SpaceId(0));
    let name = || words.chars().take(20).collect();
    let absent = FaultCode(0b110);
    let events = [
        (0, Event::Task { task: first, owner: Owner::Recorded, space, name: name() }),
        (0, Event::Running { task: first }),
        (0, Event::Spawn { task: second, space, name: name() }),
        (1, Event::Running { task: TaskId::KERNEL }),
        (1, Event::Switch { next: second, left: Left::Blocked }),
        (0, Event::Fault { address: PAGE, code: absent }),
        (1, Event::Fault { address: PAGE, code: absent }),
        (0, Event::Call(Call::Unmap { address: PAGE, length: 4096 })),
        (0, Event::Interrupts { targets: vec![1] }),
        (0, Event::Return { value: 0 }),
        (1, Event::Exit),
        (0, Event::Exit),
    ];
    let mut writer =
        Writer::create(File::create(path).expect("a file"), &header).expect("a header");
    for (time, (cpu, event)) in (1..).zip(events) {
        writer.write(&Record { time_ns: time * 1000, cpu, event }).expect("a record");
    }
    writer.finish(Ended::Exited(0)).expect("an end");
}

/// Fails with one line of cause and one of remedy, and leaves nothing behind.
fn assert_fails(folder: &Path, arguments: &[&str], words: &[&str]) {
    let before = fs::read_dir(folder).expect("the folder").count();
    let output = report(folder, arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{arguments:?}: {error}");
    assert!(lines[0].starts_with("error: ") && lines[1].starts_with("try:   "), "{error}");
    for word in words {
        assert!(error.contains(word), "{arguments:?} should say `{word}`: {error}");
    }
    assert_eq!(fs::read_dir(folder).expect("the folder").count(), before, "{arguments:?}");
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let folder = folder();
    record(&folder.path().join("a.shootdown"), 2, "https://example.org");
    let page = page(folder.path(), &["a.shootdown"]);
    assert!(page.contains("id=\"recording-0\"") && page.contains("id=\"published\""));
    assert!(page.contains("<code>https://example.org https://example.org</code>"));
    // The only address in an attribute is the name of SVG's own language.
    let page = page.replace("\"http://www.w3.org/2000/svg\"", "");
    for needs in ["\"http", "src=", "@import", "url(", "<script", "<link", "<iframe", "<img"] {
        assert!(!page.contains(needs), "{needs}");
    }
    // Links stay within the page.
    assert_eq!(page.matches("href=").count(), page.matches("href=\"#").count());
}

#[test]
fn what_a_recording_says_is_text() {
    let folder = folder();
    record(&folder.path().join("plain.shootdown"), 2, "plain");
    let plain = page(folder.path(), &["plain.shootdown"]);
    record(&folder.path().join(HOSTILE_NAME), 2, HOSTILE);
    let page = page(folder.path(), &[HOSTILE_NAME]);
    let shown = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&#39;&amp;\\u{1b}[2J\\n\\u{202e}";
    assert_eq!(page.matches(shown).count(), 4, "command, command, processor, kernel");
    let name = "&lt;b onclick=&#39;x&#39;&gt;&quot;&amp;\\u{1b}[2J\\n.shootdown";
    assert_eq!(page.matches(name).count(), 3, "overview, title, path");
    assert!(!page.contains(['\u{1b}', '\u{202e}']));
    // Not an element nor an attribute more, nor a line.
    for sign in ["<", ">", "\"", "'", "\n"] {
        assert_eq!(page.matches(sign).count(), plain.matches(sign).count(), "{sign:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_page() {
    let folder = folder();
    record(&folder.path().join("a.shootdown"), 2, "a");
    let first = page(folder.path(), &["a.shootdown", "--seed", "7"]);
    assert_eq!(page(folder.path(), &["a.shootdown", "--seed", "7"]), first);
    assert!(first.contains("seed 7"));
}

#[test]
fn without_a_recording_the_page_is_that_of_reproduce_and_the_zoo() {
    let folder = folder();
    let alone = page(folder.path(), &[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_shootdown"));
    command.args(["reproduce", "--quick", "--report", "other.html"]).current_dir(folder.path());
    assert!(command.output().expect("the command runs").status.success());
    let other = fs::read_to_string(folder.path().join("other.html")).expect("a page");
    let (before, zoo) = alone.split_once("<h2 id=\"zoo\">").expect("the zoo is on the page");
    let (zoo, after) = zoo.split_once("<h2 ").expect("something follows it");
    assert_eq!(format!("{before}<h2 {after}"), other);
    assert!(zoo.contains("36 of 36 bugs of other kernels"), "{zoo}");
    assert_eq!(zoo.matches("<svg ").count(), 36);
}

#[test]
fn a_recording_with_more_cpus_than_the_machine_is_replayed_by_the_machine_s_schedule() {
    let folder = folder();
    record(&folder.path().join("a.shootdown"), 3, "a");
    let page = page(folder.path(), &["a.shootdown"]);
    assert!(page.contains("3 CPUs were recorded, and this machine has 2"));
    assert!(page.contains("simulated schedule") && !page.contains("By the recorded schedule, sh"));
}

#[test]
fn mistakes_are_answered_with_a_cause_and_a_remedy() {
    let folder = folder();
    let folder = folder.path();
    record(&folder.join("a.shootdown"), 2, "a");
    fs::write(folder.join("text"), "no recording").expect("a file");
    let bytes = fs::read(folder.join("a.shootdown")).expect("a recording");
    fs::write(folder.join("cut"), &bytes[..bytes.len() - 5]).expect("a file");
    assert_fails(folder, &["no-such"], &["no-such", "shootdown record"]);
    assert_fails(folder, &["text"], &["text"]);
    assert_fails(folder, &["a.shootdown", "cut"], &["cut"]);
    assert_fails(folder, &["a.shootdown", "--machine", "pdp-11"], &["pdp-11", "xeon-2s"]);
    assert_fails(folder, &["--output", "no/such.html"], &["no/such.html"]);
    assert_fails(folder, &["--output", "."], &["directory"]);
    assert_fails(folder, &["--output", "/dev/null"], &["/dev/null", "no file"]);
    assert_fails(folder, &["a.shootdown", "--output", "a.shootdown"], &["is the input as well"]);
    assert_eq!(fs::read(folder.join("a.shootdown")).expect("a recording"), bytes);
}

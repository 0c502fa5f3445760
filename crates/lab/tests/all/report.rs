//! The page and the errors of `shootdown report`, with untrusted recordings.

use std::fs::{self, File};
use std::path::Path;
use std::process::Output;
use std::sync::OnceLock;

use serde_json::Value;
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Frame, FrameId, Layer, Left, Owner, Record, SpaceId,
    TaskId,
};
use shootdown_recording::{Ended, Header, Source, Writer};
use tempfile::TempDir;

const HOSTILE: &str = "<script>alert(\"1\")</script>'&\u{1b}[2J\n\u{202e}";
/// Hostile text that can be the name of a file.
const HOSTILE_NAME: &str = "<b onclick='x'>\"&\u{1b}[2J\n.shootdown";

const PAGE: u64 = 0x7f00_0000_0000;

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn report(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::common::command();
    command.args(["report", "--quick"]).args(arguments).current_dir(directory);
    command.output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Runs the command and returns the page, which is `report.html`.
fn page(directory: &Path, arguments: &[&str]) -> String {
    let output = report(directory, arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert!(printed.ends_with("\n\nreport: report.html\n"), "{printed}");
    // Text from a recording must not control the terminal.
    assert!(printed.chars().all(|c| c == '\n' || !c.is_control()), "{printed:?}");
    fs::read_to_string(directory.join("report.html")).expect("the page")
}

/// Writes a recording of two threads on two CPUs. One of them unmaps a page that both have touched.
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
    let frame = |frame, layer| {
        let (function, file) = (words.to_owned(), words.to_owned());
        let function = Frame { layer, function, file, line: 7 };
        Event::Frame { frame: FrameId(frame), caller: FrameId(frame - 1), function }
    };
    let events = [
        (0, Event::Task { task: first, owner: Owner::Recorded, space, name: name() }),
        (0, Event::Running { task: first }),
        (0, Event::Spawn { task: second, space, name: name() }),
        (1, Event::Running { task: TaskId::KERNEL }),
        (1, Event::Switch { next: second, left: Left::Blocked }),
        (0, Event::Fault { address: PAGE, code: absent }),
        (1, Event::Fault { address: PAGE, code: absent }),
        (0, Event::Call(Call::Unmap { address: PAGE, length: 4096 })),
        (0, frame(1, Layer::User)),
        (0, frame(2, Layer::Kernel)),
        (0, Event::Flush { reason: FlushReason::Request, pages: Some(1) }),
        (0, Event::Stack { frame: FrameId(2), requests: 1 }),
        (0, Event::Requests { targets: vec![1] }),
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

/// Asserts that the command refuses its input with one line of cause and one line of remedy, and
/// leaves no file behind.
fn assert_refuses(directory: &Path, arguments: &[&str], words: &[&str]) {
    let before = fs::read_dir(directory).expect("the directory").count();
    let output = report(directory, arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{arguments:?}: {error}");
    assert!(lines[0].starts_with("error: ") && lines[1].starts_with("try:   "), "{error}");
    for word in words {
        assert!(error.contains(word), "{arguments:?}: `{word}` is not in: {error}");
    }
    assert_eq!(fs::read_dir(directory).expect("the directory").count(), before, "{arguments:?}");
}

#[test]
fn page_has_no_external_references() {
    let page = plain_page();
    assert!(page.contains("id=\"recording-0\"") && !page.contains("id=\"published\""));
    assert!(page.contains("<code>https://example.org https://example.org</code>"));
    let (before, rest) = page.split_once("srcdoc=\"").expect("a flame graph");
    let (graph, after) = rest.split_once('"').expect("its end");
    for needs in ["href=", "src=", "@import", "url(&quot;", "url(http"] {
        assert!(!graph.contains(needs), "{needs}");
    }
    let page = format!("{before}{after}");
    // The only URL in an attribute is the namespace of SVG.
    let page = page.replace("\"http://www.w3.org/2000/svg\"", "");
    for needs in ["\"http", "src=", "@import", "url(", "<script", "<link", "<img"] {
        assert!(!page.contains(needs), "{needs}");
    }
    // Links stay within the page.
    assert_eq!(page.matches("href=").count(), page.matches("href=\"#").count());
}

/// Text from the recording that [`plain_page`] shows.
const PLAIN: &str = "https://example.org";

/// Returns the page of a recording without hostile text. It is written once for all tests.
fn plain_page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| {
        let directory = directory();
        record(&directory.path().join("plain.shootdown"), 2, PLAIN);
        page(directory.path(), &["plain.shootdown"])
    })
}

#[test]
fn page_begins_with_the_program() {
    let page = plain_page();
    let place = |part: &str| page.find(part).unwrap_or_else(|| panic!("no {part}"));
    let parts = ["id=\"program-0\"", "<fieldset>", "<iframe", "<figure", "id=\"recordings\""];
    assert!(parts.is_sorted_by_key(|part| place(part)), "{page}");
    assert!(page.contains("all by munmap in "));
}

#[test]
fn text_from_recording_is_escaped() {
    let directory = directory();
    let plain = plain_page();
    record(&directory.path().join(HOSTILE_NAME), 2, HOSTILE);
    let page = page(directory.path(), &[HOSTILE_NAME]);
    let shown = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&#39;&amp;\\u{1b}[2J\\n\\u{202e}";
    // The command, which is twice in the contents, the heading and the facts; processor and kernel;
    // and the call in the answer, the site's summary and the stack.
    assert_eq!(page.matches(shown).count(), 3 * 2 + 2 + 3);
    let name = "&lt;b onclick=&#39;x&#39;&gt;&quot;&amp;\\u{1b}[2J\\n.shootdown";
    assert_eq!(page.matches(name).count(), 4, "contents, overview, heading, path");
    assert!(!page.contains(['\u{1b}', '\u{202e}']));
    // The hostile text added no element, no attribute and no line.
    for sign in ["<", ">", "\"", "'", "\n"] {
        assert_eq!(page.matches(sign).count(), plain.matches(sign).count(), "{sign:?}");
    }
}

#[test]
fn same_seed_gives_same_page() {
    let directory = directory();
    record(&directory.path().join("plain.shootdown"), 2, PLAIN);
    assert_eq!(page(directory.path(), &["plain.shootdown"]), plain_page());
    assert!(plain_page().contains("seed 1"));
}

#[test]
fn results_that_are_off_have_a_note() {
    let directory = directory();
    let mut command = crate::common::command();
    command.args(["reproduce", "--quick", "--format", "json"]);
    let output = command.current_dir(directory.path()).output().expect("the command runs");
    assert!(output.status.success());
    let results = serde_json::from_slice(&output.stdout).expect("JSON");
    // In a quick run, one row is off that is not in a full run.
    let is_quick_only = |row: &&Value| row["metric"] == "interrupts" && row["machine"] == "xeon-4s";
    let explained = inexact_rows(&results).filter(|row| row["note"].is_string()).count();
    let unexplained: Vec<_> = inexact_rows(&results).filter(|row| row["note"].is_null()).collect();
    assert!(explained >= 5 && unexplained.iter().all(is_quick_only), "{unexplained:#?}");
}

/// Rows whose predicted gain differs from the published one by over 15 %.
fn inexact_rows(results: &Value) -> impl Iterator<Item = &Value> {
    results["rows"].as_array().into_iter().flatten().filter(|row| {
        let gain = |pair: &Value| Some(pair["before"].as_f64()? / pair["after"].as_f64()?);
        let ratio = gain(&row["predicted"]).zip(gain(&row["published"]));
        ratio
            .is_some_and(|(predicted, published)| !(0.85..=1.15).contains(&(predicted / published)))
    })
}

#[test]
fn recording_of_more_cpus_uses_simulated_schedule() {
    let directory = directory();
    record(&directory.path().join("a.shootdown"), 3, "a");
    let page = page(directory.path(), &["a.shootdown"]);
    assert!(page.contains("The recording is of 3 CPUs, and this machine has 2"));
    assert!(
        page.contains("simulated schedule") && !page.contains("Under the recorded schedule, sh")
    );
}

#[test]
fn bad_input_exits_2_with_cause_and_remedy() {
    let directory = directory();
    let directory = directory.path();
    record(&directory.join("a.shootdown"), 2, "a");
    fs::write(directory.join("text"), "no recording").expect("a file");
    let bytes = fs::read(directory.join("a.shootdown")).expect("a recording");
    // Without one intact block.
    fs::write(directory.join("cut"), &bytes[..20]).expect("a file");
    assert_refuses(directory, &["no-such"], &["no-such", "shootdown record"]);
    assert_refuses(directory, &["text"], &["text"]);
    assert_refuses(directory, &["a.shootdown", "cut"], &["cut"]);
    assert_refuses(directory, &["a.shootdown", "--machine", "pdp-11"], &["pdp-11", "xeon-2s"]);
    assert_refuses(directory, &["--output", "no/such.html"], &["no/such.html"]);
    assert_refuses(directory, &["--output", "."], &["directory"]);
    assert_refuses(
        directory,
        &["--output", "/dev/null"],
        &["/dev/null", "not a regular file", "with --output"],
    );
    assert_refuses(directory, &["a.shootdown", "--output", "a.shootdown"], &["is also the input"]);
    assert_eq!(fs::read(directory.join("a.shootdown")).expect("a recording"), bytes);
}

//! Tests of the parts of a page.

use shootdown_recording::Source;
use shootdown_run::{Classes, MemoryCosts};
use shootdown_sim::TimeByCause;

use super::super::fidelity::Fidelity;
use super::super::verdict::{Recording, Schedule};
use super::*;
use crate::error::Violations;

fn row(design: Design, ipis_sent: u64, time_ns: u64) -> DesignRow {
    DesignRow {
        time_error_ns: 0,
        steps_dropped: 0,
        design,
        time_ns,
        ipis_sent,
        ipis_coalesced: 3,
        ipis_to_lazy: 1,
        ipis_to_non_users: 0,
        flushes_full: 2,
        flushes_ranged: 1516,
        pages_invalidated: 1520,
        tlb_refills: 15_610,
        switches: 146,
        switches_without_flush: 139,
        shootdown_wait_ns: Wait { p50: 870, p99: 6_540, max: 12_345 },
        interrupted_ns: 1_164_213,
        violations: 0,
        hazards: 0,
        flushes_at_switch: 7,
        requests: 600,
        time_by_cause: TimeByCause::default(),
        lock_waits: 0,
        lock_sleep_ns: 0,
        classes: Classes::default(),
        memory_costs: MemoryCosts::default(),
    }
}

fn verdict(schedule: Schedule) -> Verdict {
    let designs = vec![
        row(Design::LINUX_4_12, 1_000, 900_000_000),
        row(Design::LINUX_7_0, 752, 877_000_000),
        row(Design::SHOOTDOWN, 48, 873_000_000),
    ];
    let kernel =
        Kernel { requests: Some(751), ipis_sent: 751, flushes_full: 1, flushes_ranged: 1300 };
    Verdict {
        runs: if schedule == Schedule::Simulated { 16 } else { 1 },
        machine: "emerald-rapids-kvm".to_owned(),
        machine_cpus: 2,
        seed: 1,
        fidelity: Fidelity::new(schedule, &designs, &kernel, "6.18"),
        designs,
        kernel,
        schedule,
        recording: Recording {
            file: "traces/xz.shootdown".to_owned(),
            header: Header {
                recorder: "shootdown".to_owned(),
                source: Source::Tracefs,
                command: vec!["xz".to_owned(), "-T2".to_owned()],
                kernel: "6.18".to_owned(),
                processor: "Some Processor".to_owned(),
                cpus: 2,
            },
            threads: 3,
            spaces: 2,
            cut: None,
            records: 11_155,
            lost: 0,
            time_ns: 870_642_139,
            faults: 7_788,
            calls: 57,
            ipis_by_others: 0,
            unattributed: 0,
            parallel_share: 0.5,
            delivery_ns: Some(1_200),
        },
    }
}

fn comparison() -> Comparison {
    let verdicts = vec![verdict(Schedule::Recorded), verdict(Schedule::Simulated)];
    Comparison { verdicts, too_few_cpus: None }
}

#[test]
fn text_of_recording_is_as_reviewed() {
    let comparison = comparison();
    let words = facts(&comparison)
        + &fidelity(&comparison)
        + &tables::side_by_side(&comparison.verdicts).html();
    insta::assert_snapshot!(words);
}

#[test]
fn recorded_kernel_is_first_bar_in_own_colour() {
    let comparison = comparison();
    let part = plots(&comparison.verdicts);
    assert_eq!(part.matches("<svg ").count(), 6);
    let of = |bars: Vec<Bar>| bars.iter().map(|bar| bar.of).collect::<Vec<_>>();
    let all = [Of::Reality, Of::Design, Of::Design, Of::Ours];
    assert_eq!(of(interrupts(comparison.main())), all);
    assert_eq!(of(flushes(comparison.main())), all);
    assert_eq!(of(waits(comparison.main())), all[1..]);
    assert_eq!(flushes(comparison.main())[0].ends, [1.0, 1301.0]);
    let linux = &comparison.main().designs[1];
    let at_a_switch = linux.flushes() + linux.flushes_at_switch;
    assert_eq!(flushes(comparison.main())[2].ends.last(), Some(&(at_a_switch as f64)));
}

#[test]
fn text_from_recording_is_escaped() {
    let hostile = "<script>\"'&\u{1b}[2J\n\u{202e}";
    let mut comparison = comparison();
    for verdict in &mut comparison.verdicts {
        verdict.recording.file = format!("traces/{hostile}");
        verdict.machine = hostile.to_owned();
        verdict.recording.header.command = vec![hostile.to_owned(); 2];
        verdict.recording.header.kernel = hostile.to_owned();
        verdict.recording.header.processor = hostile.to_owned();
    }
    let plain = part(&[super::tests::comparison()]);
    let part = part(&[comparison]);
    let shown = "&lt;script&gt;&quot;&#39;&amp;\\u{1b}[2J\\n\\u{202e}";
    // Two times in the name of the file, and once in each fact; the command has two words.
    assert_eq!(part.matches(shown).count(), 8);
    assert!(!part.contains("<script") && !part.contains('\u{1b}') && !part.contains('\u{202e}'));
    // The hostile text added no element and no attribute.
    for sign in ['<', '>', '"'] {
        assert_eq!(part.matches(sign).count(), plain.matches(sign).count(), "{sign}");
    }
}

#[test]
fn sentence_compares_interrupts_time_and_violations() {
    let linux = row(Design::LINUX_7_0, 100, 1_000_000);
    let ours = |ipis_sent, time_ns| sentence(&row(Design::SHOOTDOWN, ipis_sent, time_ns), &linux);
    assert_eq!(
        ours(25, 900_000),
        "shootdown sends 25 interrupts instead of the 100 of linux-7.0 (75.0 % fewer) and takes \
         100 µs less (10.00 %). The simulator counted no violations under either design."
    );
    assert_eq!(
        ours(101, 1_000_100),
        "shootdown sends 101 interrupts instead of the 100 of linux-7.0 (1.00 % more) and takes \
         100 ns longer (0.01 %). The simulator counted no violations under either design."
    );
    let unsure = DesignRow { time_error_ns: 60_000, ..row(Design::SHOOTDOWN, 25, 900_000) };
    assert!(sentence(&unsure, &linux).contains("takes the same time (± 120 µs)"));
    assert_eq!(saved(&unsure, &linux), "± 12.00 %");
    assert!(
        ours(100, 1_000_001).contains("as many interrupts as linux-7.0 (100) and takes the same")
    );
    let bad = DesignRow { violations: 2, ..row(Design::SHOOTDOWN, 1, 1) };
    assert!(
        sentence(&bad, &linux).ends_with("2 violations under shootdown and 0 under linux-7.0.")
    );
}

#[test]
fn small_difference_is_not_green() {
    let linux = row(Design::LINUX_7_0, 100, 1_000);
    let class_of = |(sent, time_ns)| class(&row(Design::SHOOTDOWN, sent, time_ns), &linux);
    assert_eq!([(90, 1_000), (25, 900)].map(class_of), ["verdict"; 2]);
    assert_eq!([(91, 900), (90, 1_001), (100, 1_000)].map(class_of), ["verdict even"; 3]);
    let none = row(Design::LINUX_7_0, 0, 1_000);
    assert_eq!(class(&none, &none), "verdict even");
    let bad = DesignRow { violations: 1, ..row(Design::SHOOTDOWN, 25, 900) };
    assert_eq!(class(&bad, &linux), "verdict bad");
}

#[test]
fn violation_is_highlighted_everywhere() {
    let mut comparison = comparison();
    assert!(comparison.violated().is_ok());
    comparison.verdicts[1].designs[2].violations = 2;
    assert_eq!(comparison.violated(), Violations::none_in([2].into_iter()));
    let part = part(&[comparison]);
    assert_eq!(part.matches("class=\"verdict bad\"").count(), 1);
    assert_eq!(part.matches("<b class=\"bad\">2</b>").count(), 2, "in its row and in the overview");
}

#[test]
fn page_names_machine_with_enough_cpus() {
    let error = TooFewCpus {
        recorded: 16,
        machine: 2,
        name: "emerald-rapids-kvm".to_owned(),
        known: vec!["xeon-2s"],
    };
    let verdicts = vec![verdict(Schedule::Simulated)];
    let part = part(&[Comparison { verdicts, too_few_cpus: Some(error) }]);
    assert!(part.contains("The recording is of 16 CPUs, and this machine has 2"), "{part}");
    assert!(part.contains("<code>--machine xeon-2s</code>"), "{part}");
    assert_eq!(part.matches("<svg ").count(), 3);
}

#[test]
fn ratio_far_from_one_is_off() {
    assert_eq!(closeness(Some(0.9), 10), "within 10 %");
    assert_eq!(closeness(Some(8.0 / 9.0), 1), "off by 1, 11 %");
    assert_eq!(closeness(None, 3), "the kernel did none");
}

#[test]
fn lost_events_are_reported_at_top_of_chapter() {
    let mut comparison = comparison();
    for verdict in &mut comparison.verdicts {
        verdict.recording.lost = 7;
    }
    let part = part(&[comparison]);
    let chapter = part.split("<h2 id=\"recording-0\">").nth(1).expect("a chapter");
    let warning = chapter.find("7</b> events were lost").expect("a warning");
    assert!(warning < chapter.find("<dl>").expect("facts"), "{chapter}");
}

#[test]
fn full_and_ranged_flushes_have_separate_ratios() {
    let table = fidelity(&comparison());
    for row in [
        "<tr><td>full flushes<td>1<td>2<td>2.000<td>off by 1, 100 %",
        "<tr><td>ranged flushes<td>1\u{202f}300<td>1\u{202f}516<td>1.166<td>off by 216, 17 %",
        "<tr><td>all flushes<td>1\u{202f}301<td>1\u{202f}518<td>1.167<td>off by 217, 17 %",
    ] {
        assert!(table.contains(row), "{row}: {table}");
    }
}

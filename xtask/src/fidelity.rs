//! Real programs on the kernel of this machine: the model `linux-7.0` held against it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::boots::golden;
use crate::command::{Command, Failure, cargo};
use crate::guests::{Counts, PROGRAMS, Program, Verdict, copied, counts, words, written};

/// The machine of the replays: the one that made the table.
const MACHINE: &str = "emerald-rapids-kvm";
/// Number of threads or processes of a program.
const CPUS: u32 = 2;

/// The file with the table. The chapter on replays explains it.
const TABLE: &str = "docs/data/fidelity.csv";

macro_rules! stress {
    ($kind:literal, $count:literal) => {
        Program {
            name: concat!("stress-ng ", $kind),
            needs: "stress-ng",
            inputs: |_| Ok(Vec::new()),
            command: |_| words(&format!("stress-ng --quiet --{0} 2 --{0}-ops {1}", $kind, $count)),
        }
    };
}

/// Programs that need more of the machine than a guest has.
const MORE: &[Program] = &[
    stress!("fork", 400),
    stress!("madvise", 400),
    stress!("mremap", 400),
    stress!("tlb-shootdown", 40),
    stress!("vm", 4000),
    Program {
        name: "make",
        needs: "make",
        inputs: |work| {
            copied(work, "loops.c")?;
            let rules =
                "all: 1.o 2.o 3.o 4.o\n1.o 2.o 3.o 4.o: loops.c\n\tgcc -O1 -c -o $@ loops.c\n";
            written(work, "Makefile", rules)
        },
        command: |cpus| words(&format!("make -s -B -j{cpus}")),
    },
    Program {
        name: "rustc",
        needs: "rustc",
        inputs: |work| written(work, "hello.rs", "fn main() { println!(\"{:?}\", [1; 9]); }\n"),
        command: |_| words("rustc -O hello.rs"),
    },
    java("java G1", |_| words("java -Xmx128m -XX:+UseG1GC -cp . Churn 2")),
    java("java Z", |_| words("java -Xmx128m -XX:+UseZGC -cp . Churn 2")),
    java("javac", |_| words("javac -d classes Churn.java")),
    Program {
        name: "python processes",
        needs: "/usr/bin/python3",
        inputs: |work| {
            let source = "from multiprocessing import Pool\nif __name__ == '__main__':\n    \
                          with Pool(2) as pool: print(sum(pool.map(abs, range(200000))))\n";
            written(work, "processes.py", source)
        },
        command: |_| words("/usr/bin/python3 processes.py"),
    },
    Program {
        name: "numpy",
        needs: "/usr/bin/python3",
        inputs: |_| {
            let numpy = Command::new("/usr/bin/python3").args("-c").arg("import numpy").output();
            let missing = |_| Failure::missing("numpy is not installed", "install python3-numpy");
            numpy.map(|_| Vec::new()).map_err(missing)
        },
        command: |_| {
            let source =
                "import numpy as n; a = n.ones((600, 600)); [a @ a + i for i in range(40)]";
            [words("/usr/bin/python3 -c"), vec![source.to_owned()]].concat()
        },
    },
    Program {
        name: "redis",
        needs: "redis-server",
        inputs: |_| Ok(Vec::new()),
        command: |_| {
            let script = "redis-server --port 7399 --save '' --dir . > /dev/null & sleep 1; \
                          redis-benchmark -p 7399 -n 20000 -c 20 -t set,get,lpush -q > /dev/null; \
                          redis-cli -p 7399 bgsave > /dev/null; sleep 1; \
                          redis-cli -p 7399 shutdown nosave; wait";
            vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()]
        },
    },
];

/// Causes of differences that are known, as the book names them.
const KNOWN: &[(&str, &str)] = &[
    ("python", "switches during a flush"),
    ("stress-ng madvise", "calls that wait"),
    ("stress-ng vm", "pages that are kept"),
];

/// Returns a program of Java, whose source is the corpus's.
const fn java(name: &'static str, command: fn(u32) -> Vec<String>) -> Program {
    let inputs = |work: &Path| {
        let source = copied(work, "Churn.java")?;
        Command::new("javac").args("Churn.java").within(work).run()?;
        Ok(vec![source])
    };
    Program { name, needs: "javac", inputs, command }
}

/// Records each program on this machine, unless it was recorded before, replays the recordings, and
/// writes the table of verdicts.
pub(crate) fn soak() -> Result<(), Failure> {
    cargo("build --quiet --release -p shootdown-lab").run()?;
    let lab = crate::output().join("release/shootdown");
    let directory = std::path::absolute(crate::output().join("fidelity")).unwrap_or_default();
    let mut rows = Vec::new();
    for program in PROGRAMS.iter().chain(MORE) {
        let result = one(program, &lab, &directory);
        println!("{}: {result:?}", program.name);
        rows.push((program.name, result));
        golden::check_file(TABLE, &table(&rows))?;
    }
    Ok(())
}

/// Returns the counts of a program.
fn one(program: &Program, lab: &Path, directory: &Path) -> Result<Counts, Failure> {
    let lab = std::path::absolute(lab).unwrap_or_default();
    let work = directory.join("work");
    fs::create_dir_all(&work).map_err(|error| {
        Failure::new(format!("{}: {error}", work.display()), "free some disk space")
    })?;
    let path: PathBuf = directory.join(program.name.replace(' ', "-") + ".shootdown");
    if !path.is_file() {
        if program.prepare(&work)?.is_none() {
            let cause = format!("{} is not installed", program.needs);
            return Err(Failure::missing(cause, "install it"));
        }
        // Others may use this machine: the threads should run at once all the same.
        let record = Command::new(&lab).args("record --quiet --output").arg(&path);
        let record = record.args("-- nice -n -10");
        let command = (program.command)(CPUS).into_iter().fold(record, Command::arg);
        command.within(&work).output()?;
    }
    counts(&lab, &path, MACHINE)
}

/// Returns the table of the programs, as CSV.
fn table(rows: &[(&str, Result<Counts, Failure>)]) -> String {
    let mut text = "program,requests,requests_model,full,full_model,ranged,ranged_model,verdict,\
                    cause\n"
        .to_owned();
    for (name, counts) in rows {
        let cells = match counts {
            Ok(counts) => {
                let verdict = counts.verdict();
                let known = KNOWN.iter().find(|(program, _)| program == name);
                let cause = known.filter(|_| verdict != Verdict::Close);
                let cause = cause.map_or("", |(_, cause)| cause);
                let pairs = [counts.requests, counts.full, counts.ranged];
                let pairs = pairs.map(|(kernel, model)| format!("{kernel},{model}")).join(",");
                format!("{pairs},{},{cause}", verdict.name())
            }
            Err(_) => ",,,,,,not recorded,".to_owned(),
        };
        // A string never refuses text.
        let _ = writeln!(text, "{name},{cells}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_a_row_each() {
        let close = Counts { requests: (100, 101), ..Counts::default() };
        let off = Counts { requests: (100, 200), ..Counts::default() };
        let missing = Failure::missing("gone is not installed", "install it");
        let table = table(&[("a", Ok(close)), ("b", Ok(off)), ("c", Err(missing))]);
        let rows: Vec<_> = table.lines().skip(1).collect();
        assert_eq!(rows[0], "a,100,101,0,0,0,0,close,");
        assert_eq!(rows[1], "b,100,200,0,0,0,0,requests,");
        assert_eq!(rows[2], "c,,,,,,,not recorded,");
    }

    #[test]
    fn known_causes_are_of_programs() {
        let has = |name: &str| PROGRAMS.iter().chain(MORE).any(|program| program.name == name);
        assert!(KNOWN.iter().all(|(name, _)| has(name)));
    }
}

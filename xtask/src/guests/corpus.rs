//! The programs of the corpus: what each needs of the host, and how it runs on a number of CPUs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Command, Failure};

/// A program of the corpus, with its inputs in a working directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The program that the host must have.
    pub(crate) needs: &'static str,
    /// Makes the inputs in the working directory, and returns what the guest needs of the host.
    pub(crate) inputs: fn(&Path) -> Result<Vec<PathBuf>, Failure>,
    /// Returns the words of the command for a number of CPUs.
    pub(crate) command: fn(u32) -> Vec<String>,
}

/// The iterations of a loop, of all CPUs together. On 64 CPUs, each iteration may request 63
/// flushes.
pub(crate) const ITERATIONS: u32 = 512;

macro_rules! a_loop {
    ($kind:literal) => {
        Program {
            name: concat!("loop ", $kind),
            needs: "gcc",
            inputs: loops,
            command: |cpus| words(&format!("./loops {} {cpus} {ITERATIONS}", $kind)),
        }
    };
}

/// The loops, and ten real programs.
pub(crate) const PROGRAMS: &[Program] = &[
    a_loop!("madvise"),
    a_loop!("mprotect"),
    a_loop!("munmap"),
    a_loop!("fault"),
    a_loop!("migrate"),
    a_loop!("fork"),
    a_loop!("exit"),
    a_loop!("switch"),
    Program {
        name: "xz",
        needs: "xz",
        inputs: |work| numbers(work, "data", 300_000),
        command: |cpus| words(&format!("xz -1 -T{cpus} --block-size=128KiB -k -f data")),
    },
    Program {
        name: "sort",
        needs: "sort",
        inputs: |work| numbers(work, "numbers", 200_000),
        command: |cpus| words(&format!("sort --parallel={cpus} -S 64M -o sorted numbers")),
    },
    Program {
        name: "sqlite3",
        needs: "sqlite3",
        inputs: |_| Ok(Vec::new()),
        command: |cpus| {
            let sql = "CREATE TABLE t(a); WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 \
                       FROM c LIMIT 60000) INSERT INTO t SELECT (x * 7919) % 60013 FROM c; \
                       CREATE INDEX i ON t(a); SELECT count(*) FROM t;";
            let sql = format!("PRAGMA threads = {}; {sql}", cpus.min(8));
            [words("sqlite3 :memory:"), vec![sql]].concat()
        },
    },
    Program {
        name: "memcached",
        needs: "memcached",
        inputs: requests,
        command: |cpus| {
            let script = format!(
                "memcached -u root -t {cpus} -m 64 & server=$!; sleep 1; for client in 1 2 3 4; do \
                 nc 127.0.0.1 11211 < requests > /dev/null & clients=\"$clients $!\"; done; \
                 wait $clients; kill $server"
            );
            vec!["sh".to_owned(), "-c".to_owned(), script]
        },
    },
    Program {
        name: "java",
        needs: "javac",
        inputs: java,
        command: |cpus| words(&format!("java -Xmx128m -XX:+UseParallelGC -cp . Churn {cpus}")),
    },
    Program {
        name: "go",
        needs: "go",
        inputs: |work| {
            copied(work, "maps.go")?;
            let build = Command::new("go").args("build -o maps maps.go").within(work);
            build.env("CGO_ENABLED", "0").run()?;
            Ok(Vec::new())
        },
        command: |_| words("./maps"),
    },
    Program {
        name: "node",
        needs: "node",
        inputs: |work| copied(work, "allocate.js").map(|file| vec![file]),
        command: |_| words("node allocate.js"),
    },
    Program {
        name: "python",
        needs: "/usr/bin/python3",
        inputs: |work| {
            let library = "import sysconfig; print(sysconfig.get_path('stdlib'))";
            let library = Command::new("/usr/bin/python3").args("-c").arg(library).output()?;
            Ok(vec![copied(work, "threads.py")?, PathBuf::from(library.trim())])
        },
        command: |_| words("/usr/bin/python3 threads.py"),
    },
    Program {
        name: "gcc",
        needs: "gcc",
        inputs: |work| {
            let file = copied(work, "loops.c")?;
            // Already with its headers.
            Command::new("gcc").args("-E -o loops.i loops.c").within(work).run()?;
            let compiler = Command::new("gcc").args("-print-prog-name=cc1").output()?;
            Ok(vec![file.with_extension("i"), PathBuf::from(compiler.trim())])
        },
        command: |cpus| {
            let script =
                format!("for job in $(seq {cpus}); do gcc -O1 -S -o $job.s loops.i & done; wait");
            vec!["sh".to_owned(), "-c".to_owned(), script]
        },
    },
];

impl Program {
    /// Returns the options of `shootdown guest` that give the program its files, or `None` if the
    /// host lacks the program.
    pub(crate) fn prepare(&self, work: &Path) -> Result<Option<Vec<PathBuf>>, Failure> {
        if Command::new("sh").args("-c").arg(format!("command -v {}", self.needs)).output().is_err()
        {
            return Ok(None);
        }
        let first = (self.command)(1).swap_remove(0);
        let mut files = (self.inputs)(work)?;
        // A shell starts these, so the command does not find them itself.
        if first == "sh" {
            files.push(found(self.needs)?);
        }
        Ok(Some(files))
    }
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the path of a program of the host.
fn found(program: &str) -> Result<PathBuf, Failure> {
    let path = Command::new("sh").args("-c").arg(format!("command -v {program}")).output()?;
    Ok(PathBuf::from(path.trim()))
}

/// Copies a program's source from `traces/programs` into the working directory.
pub(crate) fn copied(work: &Path, name: &str) -> Result<PathBuf, Failure> {
    let (from, to) = (crate::root().join("traces/programs").join(name), work.join(name));
    fs::copy(&from, &to).map_err(|error| failed(&from, &error))?;
    Ok(to)
}

pub(crate) fn written(work: &Path, name: &str, text: &str) -> Result<Vec<PathBuf>, Failure> {
    let path = work.join(name);
    fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    Ok(vec![path])
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()), "free some disk space")
}

/// Builds the loops.
pub(crate) fn loops(work: &Path) -> Result<Vec<PathBuf>, Failure> {
    copied(work, "loops.c")?;
    let build = Command::new("gcc").args("-O2 -static -pthread -o loops loops.c");
    build.within(work).run()?;
    Ok(Vec::new())
}

/// Writes `count` random numbers, one in a line.
pub(crate) fn numbers(work: &Path, name: &str, count: u32) -> Result<Vec<PathBuf>, Failure> {
    let mut state = 1_u64;
    let mut number = || {
        // Knuth's multiplier: the same numbers on any host.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{}\n", state >> 40)
    };
    written(work, name, &(0..count).map(|_| number()).collect::<String>())
}

/// Writes requests for memcached: values that are set and read, and the end of the connection.
fn requests(work: &Path) -> Result<Vec<PathBuf>, Failure> {
    let value = "x".repeat(1000);
    let request = |key: u32| format!("set key{key} 0 0 1000\r\n{value}\r\nget key{}\r\n", key / 2);
    let text = (0..4000).map(request).chain(["quit\r\n".to_owned()]).collect::<String>();
    written(work, "requests", &text)
}

/// Compiles a Java program, and returns it with the whole runtime.
fn java(work: &Path) -> Result<Vec<PathBuf>, Failure> {
    copied(work, "Churn.java")?;
    Command::new("javac").args("Churn.java").within(work).run()?;
    let settings = "java -XshowSettings:properties -version 2>&1 | sed -n 's/.*java.home = //p'";
    let home = Command::new("sh").args("-c").arg(settings).output()?;
    let home = PathBuf::from(home.trim());
    let mut parts: Vec<_> = ["lib", "conf"].map(|part| home.join(part)).to_vec();
    parts.extend([home.join("bin/java"), work.join("Churn.class")]);
    // Debian keeps the files behind the links of `conf` and `lib` here.
    parts.extend([PathBuf::from("/etc/java-17-openjdk")].into_iter().filter(|it| it.exists()));
    Ok(parts)
}

//! The first process of the guest: a script for busybox, which runs or records the program and
//! sends the results.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::archive::{Files, quoted};
use super::error::GuestError;

/// The directory of our own files in the guest.
const OURS: &str = "/.shootdown";
/// The lines of the guest's console that report its progress begin like this.
pub(super) const STAGE: &str = "shootdown guest: ";

/// The script up to the program. `$out` is the virtio port, or the second serial port if the
/// kernel has no driver for virtio.
const BEFORE: &str = r#"#!/.shootdown/busybox sh
b=/.shootdown/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
$b mount -t tracefs tracefs /sys/kernel/tracing
$b mkdir -p /dev/shm /dev/pts
$b mount -t tmpfs tmpfs /dev/shm
$b mount -t devpts devpts /dev/pts
$b --install -s /.shootdown/bin
export HOME=/root LC_ALL=C.UTF-8
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.shootdown/bin
$b ip link set lo up
out=/dev/vport0p1
if ! [ -e $out ]; then
    out=/dev/ttyS1
    $b stty raw -F $out
fi
cd /.shootdown/out
$b uname -r > release
$b grep TLB: /proc/interrupts > before
"#;

/// The script after the program. Each file is sent as a line with its name and its size, and its
/// bytes. The last line marks a complete delivery.
const AFTER: &str = r#"echo $? > /.shootdown/out/status
cd /.shootdown/out
$b grep TLB: /proc/interrupts > after
echo "shootdown guest: bringing back the results" > /dev/console
send() {
    if [ -f "$2" ]; then
        echo "$1 $($b stat -L -c %s "$2")"
        $b cat "$2"
    fi
}
{
    for name in release status before after stdout stderr recording; do
        send $name $name
    done
"#;

/// Adds the script to the files, with the directories, links and texts that a program expects.
///
/// # Errors
///
/// If busybox or this executable cannot be read.
pub(super) fn add(
    files: &mut Files,
    script: &Script<'_>,
    busybox: &Path,
) -> Result<(), GuestError> {
    files.renamed(&Path::new(OURS).join("busybox"), busybox)?;
    files.renamed(&Path::new(OURS).join("shootdown"), Path::new("/proc/self/exe"))?;
    let ours = ["bin", "out"].map(|name| Path::new(OURS).join(name));
    let theirs = ["/proc", "/sys", "/dev", "/tmp", "/root", "/run", "/var/tmp"].map(PathBuf::from);
    for directory in ours.iter().chain(&theirs) {
        files.directory(directory);
    }
    files.directory(script.directory);
    files.link("/.shootdown/bin/shootdown", Path::new(OURS).join("shootdown"));
    let busybox = Path::new(OURS).join("busybox");
    for shell in ["/bin/sh", "/usr/bin/env"] {
        files.link(shell, &busybox);
    }
    files.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644);
    files.text("/etc/group", "root:x:0:\n", 0o644);
    files.text("/etc/hosts", "127.0.0.1 localhost\n", 0o644);
    files.text("/init", script.text(), 0o755);
    Ok(())
}

/// The parts of the script that depend on the options.
#[derive(Debug)]
pub(super) struct Script<'a> {
    pub(super) command: Vec<&'a OsStr>,
    /// The directory in which the program runs.
    pub(super) directory: &'a Path,
    /// The recorder of the program, if it is recorded.
    pub(super) recorder: Option<Recorder>,
    /// Files to send, by their paths in the guest.
    pub(super) taken: Vec<&'a Path>,
}

/// The options of `shootdown record` in the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorder {
    /// The size of each of the two kernel buffers per CPU.
    pub(super) buffer_kib: u32,
}

impl Script<'_> {
    fn text(&self) -> Vec<u8> {
        let mut text = BEFORE.as_bytes().to_vec();
        let stage = if self.recorder.is_some() { "recording" } else { "running" };
        text.extend(format!("echo \"{STAGE}{stage}\" > /dev/console\ncd ").bytes());
        text.extend(quoted(self.directory.as_os_str()));
        text.push(b'\n');
        if let Some(Recorder { buffer_kib }) = self.recorder {
            let record = format!("{OURS}/shootdown record --quiet --buffer-kib {buffer_kib}");
            text.extend(format!("{record} --output {OURS}/out/recording --").bytes());
        }
        for word in &self.command {
            text.push(b' ');
            text.extend(quoted(word));
        }
        text.extend(format!(" < /dev/null > {OURS}/out/stdout 2> {OURS}/out/stderr\n").bytes());
        text.extend(AFTER.bytes());
        for (number, path) in self.taken.iter().enumerate() {
            text.extend(format!("    send taken{number} ").bytes());
            text.extend(quoted(&self.directory.join(path).into_os_string()));
            text.push(b'\n');
        }
        text.extend(b"    echo \"end 0\"\n} > $out\n$b sync\n$b sleep 0.2\n$b poweroff -f\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_quotes_words_of_user() {
        let script = Script {
            command: [r"a'b", "$(reboot)"].map(OsStr::new).to_vec(),
            directory: Path::new("/w d"),
            recorder: Some(Recorder { buffer_kib: 64 }),
            taken: vec![Path::new("x y")],
        };
        let text = String::from_utf8(script.text()).expect("text");
        assert!(text.contains(r"-- 'a'\''b' '$(reboot)' < /dev/null"), "{text}");
        assert!(text.contains("cd '/w d'\n") && text.contains("send taken0 '/w d/x y'\n"));
        assert!(text.contains("--buffer-kib 64 "));
        let unrecorded = Script { recorder: None, ..script };
        let text = String::from_utf8(unrecorded.text()).expect("text");
        assert!(text.contains("\n 'a'\\''b' '$(reboot)' < /dev/null"), "{text}");
        assert!(!text.contains("shootdown record"), "{text}");
    }
}

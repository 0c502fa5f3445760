//! Names of the engine's words, in the order in which the engine makes them. Only histories, and
//! the recorded runs that the proof reads, use them.

/// Name of a word of a space: the generation, the log, and the words of [`SPACE_WORDS`] after it.
pub(in crate::engine) fn space_word(place: usize) -> String {
    match place {
        0 => "generation".to_owned(),
        place if place <= LOG_WORDS => {
            let what = if place % 2 == 1 { "stamp" } else { "extent" };
            format!("{what} {}", (place - 1) / 2)
        }
        place => SPACE_WORDS.get(place - LOG_WORDS - 1).unwrap_or(&"other word").to_string(),
    }
}

/// Name of a word of the engine that no space and no CPU has. Sets have one word of CPUs.
pub(in crate::engine) fn engine_word(place: usize) -> String {
    match place.checked_sub(LOG_WORDS + 1) {
        None => space_word(place),
        Some(place) => ENGINE_WORDS.get(place).unwrap_or(&"other word").to_string(),
    }
}

/// Name of a word of a CPU.
pub(in crate::engine) fn cpu_word(place: usize) -> &'static str {
    CPU_WORDS.get(place).unwrap_or(&"other word")
}

/// The words of a log of 16 entries.
const LOG_WORDS: usize = 32;

const SPACE_WORDS: [&str; 9] = [
    "references",
    "covered generation",
    "batches",
    "ASID",
    "phase",
    "top of set 0",
    "set 0",
    "top of set 1",
    "set 1",
];

const ENGINE_WORDS: [&str; 13] = [
    "top of the online set",
    "online set",
    "blocks of space ids",
    "ASID epoch",
    "listed epoch",
    "top of the ASID users",
    "ASID users",
    "next block",
    "ASID lock",
    "failures",
    "count of pins",
    "unavailable ASIDs",
    "pinned ASIDs",
];

const CPU_WORDS: [&str; 12] = [
    "presence",
    "hazard",
    "seen generation",
    "active tag",
    "reserved tag",
    "chosen tag",
    "taking",
    "walks",
    "bell",
    "acknowledgement",
    "user mode",
    "last space id",
];

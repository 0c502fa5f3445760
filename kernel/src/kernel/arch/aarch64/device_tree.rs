//! Reads the size of memory from the device tree ("Devicetree Specification", chapter 5).
//!
//! A tree consists of big-endian words of 32 bits: a header, and a sequence of nodes, each with its
//! name, properties, children and an end mark.

/// The first word of a tree.
const MAGIC: u32 = 0xd00d_feed;
/// Indices of words of the header.
const TOTAL_BYTES: usize = 1;
const NODES_OFFSET_BYTES: usize = 2;

const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOTHING: u32 = 4;

/// The size of memory in bytes, from the tree at `tree`. Returns `None` if there is no tree, or if
/// it differs from QEMU's: one memory node, with an address and a length of two words each.
///
/// # Safety
///
/// `tree` must point to mapped memory for the length that the tree's header has, and the memory
/// must not change.
pub(super) unsafe fn memory_bytes(tree: *const u32) -> Option<u64> {
    // SAFETY: the caller's promise.
    let header = unsafe { core::slice::from_raw_parts(tree, NODES_OFFSET_BYTES + 1) };
    if u32::from_be(header[0]) != MAGIC {
        return None;
    }
    let words = |at: usize| u32::from_be(header[at]) as usize / 4;
    // SAFETY: the caller's promise, for the length in the header.
    let all = unsafe { core::slice::from_raw_parts(tree, words(TOTAL_BYTES)) };
    memory_in(all.get(words(NODES_OFFSET_BYTES)..)?)
}

/// The length in the first property of four words of the first node whose name begins with
/// `memory@`. (The node's other properties are strings of other lengths.)
fn memory_in(nodes: &[u32]) -> Option<u64> {
    const REG_BYTES: u32 = 16;
    let mut rest = nodes;
    let mut is_memory = false;
    loop {
        let (kind, after) = rest.split_first()?;
        rest = match u32::from_be(*kind) {
            BEGIN_NODE => {
                // A zero byte in the last word of the name ends it.
                let words = 1 + after.iter().position(|word| word.to_ne_bytes()[3] == 0)?;
                let start = [after.first()?.to_ne_bytes(), after.get(1)?.to_ne_bytes()];
                is_memory = start.as_flattened().starts_with(b"memory@");
                after.get(words..)?
            }
            PROPERTY => {
                let (bytes, after) = (u32::from_be(*after.first()?), after.get(2..)?);
                if is_memory && bytes == REG_BYTES {
                    let [high, low] = [u32::from_be(*after.get(2)?), u32::from_be(*after.get(3)?)];
                    return Some(u64::from(high) << 32 | u64::from(low));
                }
                after.get(bytes.div_ceil(4) as usize..)?
            }
            END_NODE | NOTHING => after,
            _ => return None,
        };
    }
}

//! The layout of events, parsed from the `format` files of tracefs and from `header_page`.

/// The fields of one kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The number of the kind of event, which is in the first field of every event.
    pub(super) id: u16,
    fields: Fields,
}

impl Layout {
    /// Parses a `format` file. Returns `None` if it has no number.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
        Some(Self { id, fields: Fields::parse(text) })
    }

    pub(super) fn field(&self, name: &str) -> Option<Field> {
        self.fields.field(name)
    }
}

/// Fields by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields(Vec<(String, Field)>);

impl Fields {
    /// Parses every line that describes a field, and ignores other lines.
    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_field).collect())
    }

    pub(super) fn field(&self, name: &str) -> Option<Field> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, field)| *field)
    }
}

/// The position of a field, in bytes from the start of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) offset: usize,
    pub(super) size: usize,
}

impl Field {
    /// Returns the bytes of the field, or `None` if the event is too short.
    pub(super) fn bytes(self, event: &[u8]) -> Option<&[u8]> {
        event.get(self.offset..self.offset.checked_add(self.size)?)
    }

    /// Returns the field as an unsigned number, or `None` if the event is too short or the field
    /// has more than 8 bytes.
    pub(super) fn number(self, event: &[u8]) -> Option<u64> {
        let bytes = self.bytes(event)?;
        let mut wide = [0; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(wide))
    }

    /// Returns the field as a signed number, or `None` in the cases of [`Field::number`].
    pub(super) fn signed(self, event: &[u8]) -> Option<i64> {
        let unused = 64_u32.checked_sub(u32::try_from(self.size).ok()?.checked_mul(8)?)?;
        let number = self.number(event)?;
        Some(number.unbounded_shl(unused).cast_signed().unbounded_shr(unused))
    }

    /// Returns the bytes that a `__data_loc` field refers to. The field contains their offset in
    /// the event and their length.
    pub(super) fn referred(self, event: &[u8]) -> Option<&[u8]> {
        let reference = u32::try_from(self.number(event)?).ok()?;
        let (offset, size) = ((reference & 0xffff) as usize, (reference >> 16) as usize);
        Self { offset, size }.bytes(event)
    }
}

/// Parses a line such as `field:int common_pid; offset:4; size:4; signed:1;`.
fn parse_field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let name = declaration.split_whitespace().last()?.split('[').next()?;
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", value)) => offset = value.parse().ok(),
            Some(("size", value)) => size = value.parse().ok(),
            _ => {}
        }
    }
    Some((name.to_owned(), Field { offset: offset?, size: size? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: ipi_send_cpumask\nID: 353\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:__data_loc cpumask_t cpumask;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:0;\n\n\
        print fmt: \"cpumask=%s\", __get_cpumask(cpumask)\n";

    #[test]
    fn fields_are_found_by_name() {
        let layout = Layout::parse(FORMAT).expect("a layout");
        assert_eq!(layout.id, 353);
        assert_eq!(layout.field("comm"), Some(Field { offset: 12, size: 16 }));
        assert_eq!(layout.field("cpumask"), Some(Field { offset: 8, size: 4 }));
        assert_eq!(layout.field("fmt"), None);
        assert_eq!(Layout::parse("name: x\n"), None);
    }

    #[test]
    fn numbers_have_width_and_sign_of_fields() {
        let field = Field { offset: 1, size: 4 };
        let event = [9, 0xfe, 0xff, 0xff, 0xff, 9];
        assert_eq!(field.number(&event), Some(0xffff_fffe));
        assert_eq!(field.signed(&event), Some(-2));
        let wide = Field { offset: 0, size: 8 };
        assert_eq!(wide.signed(&[0xff; 8]), Some(-1));
    }

    #[test]
    fn field_outside_event_is_none() {
        let event = [0xff; 4];
        assert_eq!(Field { offset: 2, size: 4 }.number(&event), None);
        assert_eq!(Field { offset: usize::MAX, size: 4 }.number(&event), None);
        assert_eq!(Field { offset: 0, size: 4 }.referred(&event), None);
        assert_eq!(Field { offset: 0, size: usize::MAX }.signed(&event), None);
        assert_eq!(Field { offset: 0, size: 16 }.signed(&[0; 16]), None);
    }

    #[test]
    fn reference_has_offset_and_length() {
        let event = [4, 0, 2, 0, b'h', b'i'];
        assert_eq!(Field { offset: 0, size: 4 }.referred(&event), Some(&b"hi"[..]));
    }
}

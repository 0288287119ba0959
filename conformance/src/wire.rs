//! The part of the protobuf wire format that the files of a test case need.

/// One field of a message.
pub enum Field<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A field of fixed width, which no reader here needs.
    Other,
}

/// The fields of `message` with their numbers, up to the first byte that cannot be decoded.
pub fn fields(message: &[u8]) -> impl Iterator<Item = (u32, Field<'_>)> {
    let mut rest = message;
    std::iter::from_fn(move || {
        let key = varint(&mut rest)?;
        let field = match key & 7 {
            0 => Field::Varint(varint(&mut rest)?),
            1 => take(&mut rest, 8).map(|_| Field::Other)?,
            2 => {
                let len = usize::try_from(varint(&mut rest)?).ok()?;
                Field::Bytes(take(&mut rest, len)?)
            }
            5 => take(&mut rest, 4).map(|_| Field::Other)?,
            _ => return None,
        };
        Some(((key >> 3) as u32, field))
    })
}

/// The submessages, strings or packed lists with number `number`.
pub fn parts(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    fields(message).filter_map(move |(n, f)| match f {
        Field::Bytes(b) if n == number => Some(b),
        _ => None,
    })
}

/// A string field.
pub fn text(message: &[u8], number: u32) -> String {
    parts(message, number)
        .last()
        .map(|b| String::from_utf8_lossy(b).into_owned())
        .unwrap_or_default()
}

/// An integer field that is not repeated.
pub fn int(message: &[u8], number: u32) -> Option<u64> {
    ints(message, number).last().copied()
}

/// A repeated integer field, packed or not.
pub fn ints(message: &[u8], number: u32) -> Vec<u64> {
    let mut out = Vec::new();
    for (n, field) in fields(message) {
        match field {
            Field::Varint(v) if n == number => out.push(v),
            Field::Bytes(mut packed) if n == number => {
                while let Some(v) = varint(&mut packed) {
                    out.push(v);
                }
            }
            _ => {}
        }
    }
    out
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(head)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *take(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_scalars_lists_and_parts() {
        // The fields are 1: 300, 2: "ab", 3: packed [1, 2], 3: 3, and a truncated one.
        let message = [8, 0xac, 2, 18, 2, b'a', b'b', 26, 2, 1, 2, 24, 3, 34, 9];
        assert_eq!(int(&message, 1), Some(300));
        assert_eq!(text(&message, 2), "ab");
        assert_eq!(ints(&message, 3), [1, 2, 3]);
        assert_eq!(fields(&message).count(), 4);
    }
}

//! The name that a browser gives to an artifact: the guest chose it, so that it may be anything.

use brig_proto::v1::Artifact;

use super::Disposition;

/// What stands for a character that no name should have.
const INSTEAD: char = '_';

/// Writes Content-Disposition. Source: RFC 6266, section 4, and RFC 8187, section 3.2.
///
/// What is written is ASCII without control characters, whatever the name is.
pub(super) fn header(disposition: Disposition, artifact: &Artifact) -> String {
    let kind = match disposition {
        Disposition::Attachment => "attachment",
        Disposition::Inline => "inline",
    };
    let name = file_name(artifact);
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { INSTEAD }).collect();
    if plain == name {
        return format!("{kind}; filename=\"{plain}\"");
    }
    format!("{kind}; filename=\"{plain}\"; filename*=UTF-8''{}", encode(&name))
}

/// The last part of the path, as far as it can be the name of a file anywhere; else the artifact's id.
fn file_name(artifact: &Artifact) -> String {
    let path = if artifact.raw_path.is_empty() {
        artifact.path.clone()
    } else {
        String::from_utf8_lossy(&artifact.raw_path).into_owned()
    };
    let last = path.rsplit('/').next().unwrap_or_default();
    let name: String = last.chars().map(|c| if is_harmless(c) { c } else { INSTEAD }).collect();
    // Names of spaces and dots alone are none, or directories.
    if name.trim_matches(['.', ' ']).is_empty() {
        artifact.artifact_id.clone()
    } else {
        name
    }
}

/// Whether a character neither parts paths, nor commands anything, nor changes the order in which others are read.
fn is_harmless(character: char) -> bool {
    let is_invisible =
        matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !character.is_control() && !is_invisible && !"\"*/:<>?\\|".contains(character)
}

/// Whether a character can stand in a quoted string, and is read alike by all: some decode what begins with %.
fn is_plain(character: char) -> bool {
    matches!(character, ' '..='~') && !"\"\\%".contains(character)
}

fn encode(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &str) -> String {
        header(
            Disposition::Attachment,
            &Artifact {
                artifact_id: "a1".to_owned(),
                path: path.to_owned(),
                ..Artifact::default()
            },
        )
    }

    #[test]
    fn a_usual_name_is_itself() {
        assert_eq!(named("out/table (1).csv"), "attachment; filename=\"table (1).csv\"");
        let shown = header(
            Disposition::Inline,
            &Artifact {
                path: "chart.png".to_owned(),
                ..Artifact::default()
            },
        );
        assert_eq!(shown, "inline; filename=\"chart.png\"");
    }

    #[test]
    fn names_in_other_scripts_are_there_for_who_can_read_them() {
        assert_eq!(
            named("Größe 50%.csv"),
            "attachment; filename=\"Gr__e 50_.csv\"; filename*=UTF-8''Gr%C3%B6%C3%9Fe%2050%25.csv"
        );
    }

    #[test]
    fn no_name_ends_the_header_or_leads_elsewhere() {
        for (path, name) in [
            ("a\r\nSet-Cookie: b=c", "a__Set-Cookie_ b=c"),
            ("a\"; filename=\"b.exe", "a__ filename=_b.exe"),
            ("..\\..\\b", ".._.._b"),
            ("a\u{202e}gpj.exe", "a_gpj.exe"),
            ("a\0b\u{7f}\u{9b}c", "a_b__c"),
            ("d/..", "a1"),
            ("", "a1"),
            (" . ", "a1"),
        ] {
            let expected = name.replace(';', "_");
            assert_eq!(
                named(path).replace(";", "_"),
                format!("attachment_ filename=\"{expected}\""),
                "{path:?}"
            );
        }
        for code in 0..0x2100 {
            let character = char::from_u32(code).unwrap();
            let header = named(&format!("x{character}y"));
            assert!(
                header.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
                "{code:x}: {header}"
            );
            assert_eq!(header.matches('"').count(), 2, "{code:x}: {header}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_shown_as_one() {
        let artifact = Artifact {
            raw_path: b"d/a\xffb".to_vec().into(),
            ..Artifact::default()
        };
        let header = header(Disposition::Attachment, &artifact);
        assert_eq!(header, "attachment; filename=\"a_b\"; filename*=UTF-8''a%EF%BF%BDb");
    }
}

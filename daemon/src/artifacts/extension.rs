//! What a file's name claims.

use brig_jailer::policy::{Artifacts, Class};

use super::content::{Content, XLSX};

/// What an ending stands for.
struct Known {
    extensions: &'static [&'static str],
    class: Class,
    media_type: &'static str,
    expected: Expected,
}

/// The content that an ending promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Magic bytes of the very type.
    Magic(&'static str),
    /// Readable text that is no markup with a life of its own and no script.
    Text,
    Json,
    /// Text of any kind.
    Source,
    Executable,
    Archive,
}

use Expected::{Archive, Executable, Json, Magic, Source, Text};

const KNOWN: &[Known] = &[
    known(&["png"], Class::Chart, "image/png", Magic("image/png")),
    known(&["jpg", "jpeg"], Class::Chart, "image/jpeg", Magic("image/jpeg")),
    known(&["webp"], Class::Chart, "image/webp", Magic("image/webp")),
    known(&["gif"], Class::Chart, "image/gif", Magic("image/gif")),
    known(&["svg"], Class::Chart, "image/svg+xml", Magic("image/svg+xml")),
    known(&["csv"], Class::Data, "text/csv", Text),
    known(&["tsv"], Class::Data, "text/tab-separated-values", Text),
    known(&["json", "geojson"], Class::Data, "application/json", Json),
    known(&["jsonl", "ndjson"], Class::Data, "application/x-ndjson", Json),
    known(&["xlsx"], Class::Data, XLSX, Magic(XLSX)),
    known(
        &["parquet"],
        Class::Data,
        "application/vnd.apache.parquet",
        Magic("application/vnd.apache.parquet"),
    ),
    known(&["txt", "log"], Class::Report, "text/plain", Text),
    known(&["md", "markdown"], Class::Report, "text/markdown", Text),
    known(&["pdf"], Class::Report, "application/pdf", Magic("application/pdf")),
    known(&["py", "pyw", "pyi"], Class::Code, "text/x-python", Source),
    known(&["ipynb"], Class::Code, "application/x-ipynb+json", Json),
    known(&["html", "htm", "xhtml"], Class::Code, "text/html", Source),
    known(
        &["js", "mjs", "cjs", "ts", "jsx", "tsx"],
        Class::Code,
        "text/javascript",
        Source,
    ),
    known(
        &["sh", "bash", "zsh", "fish", "bat", "cmd", "ps1", "vbs"],
        Class::Code,
        "text/x-script",
        Source,
    ),
    known(
        &["pl", "rb", "php", "lua", "r", "jl", "sql", "css"],
        Class::Code,
        "text/plain",
        Source,
    ),
    known(
        &["c", "h", "cc", "cpp", "hpp", "rs", "go", "java", "kt", "cs", "swift"],
        Class::Code,
        "text/plain",
        Source,
    ),
    known(
        &["exe", "dll", "so", "dylib", "elf", "wasm", "class"],
        Class::Executable,
        "application/octet-stream",
        Executable,
    ),
    known(
        &["jar", "apk", "pyc", "pyd", "msi", "deb", "rpm"],
        Class::Executable,
        "application/octet-stream",
        Executable,
    ),
    known(&["zip", "whl"], Class::Archive, "application/zip", Archive),
    known(
        &["tar", "gz", "tgz", "bz2", "xz", "zst", "7z", "rar"],
        Class::Archive,
        "application/octet-stream",
        Archive,
    ),
];

const fn known(
    extensions: &'static [&'static str],
    class: Class,
    media_type: &'static str,
    expected: Expected,
) -> Known {
    Known {
        extensions,
        class,
        media_type,
        expected,
    }
}

/// What a name claims, under a policy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimed {
    pub(super) class: Class,
    pub(super) media_type: Option<&'static str>,
    expected: Option<Expected>,
    /// Whether the ending means anything at all.
    claims: bool,
    /// Whether the ending has a class by nature, whose rule lists others.
    pub(super) is_unlisted: bool,
}

/// Whether the content is what the name claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fits {
    Yes,
    No,
    NothingClaimed,
}

impl Claimed {
    /// Reads a file name. A class with a list of endings takes those alone; one without takes what is its by nature.
    pub(super) fn of(rules: &Artifacts, name: &str) -> Self {
        let extension = name
            .rsplit_once('.')
            .map(|(_, extension)| extension.to_ascii_lowercase());
        let is_known = |known: &&Known| {
            extension
                .as_deref()
                .is_some_and(|name| known.extensions.contains(&name))
        };
        let known = KNOWN.iter().find(is_known);
        let listed = rules.class_of_name(name);
        let by_nature = known
            .map(|known| known.class)
            .filter(|class| rules.rule(*class).extensions.is_empty());
        let class = listed.or(by_nature).unwrap_or(Class::Other);
        Self {
            class,
            media_type: known
                .filter(|known| !has_vague_type(known))
                .map(|known| known.media_type),
            expected: known.map(|known| known.expected),
            claims: listed.is_some() || known.is_some(),
            is_unlisted: listed.is_none() && by_nature.is_none() && known.is_some(),
        }
    }

    pub(super) fn fits(&self, content: &Content) -> Fits {
        if !self.claims {
            return Fits::NothingClaimed;
        }
        let fits = match self.expected {
            Some(expected) => expected.fits(*content),
            None => fits_class(self.class, *content),
        };
        if fits { Fits::Yes } else { Fits::No }
    }
}

/// Whether the content says the type better than the ending does.
fn has_vague_type(known: &Known) -> bool {
    known.media_type == "application/octet-stream"
}

impl Expected {
    fn fits(self, content: Content) -> bool {
        match self {
            Magic(name) => content.media_type() == name,
            Text => matches!(content, Content::Empty | Content::Text { .. } | Content::Json),
            Json => matches!(content, Content::Empty | Content::Json),
            Source => content.is_text() || matches!(content, Content::Script | Content::Html),
            // Whatever it holds, the name alone makes some system run it.
            Executable => true,
            Archive => matches!(content, Content::Archive(_) | Content::Binary),
        }
    }
}

/// For endings that a policy lists and this table doesn't know.
fn fits_class(class: Class, content: Content) -> bool {
    match class {
        Class::Chart => matches!(content, Content::Image(_)),
        Class::Data => !matches!(
            content,
            Content::Executable(_) | Content::Archive(_) | Content::Script | Content::Html | Content::Svg
        ),
        Class::Report => matches!(
            content,
            Content::Empty | Content::Text { .. } | Content::Json | Content::Pdf | Content::Office(_)
        ),
        Class::Code => content.is_text() || matches!(content, Content::Script | Content::Html),
        Class::Executable | Class::Archive | Class::Other => true,
    }
}

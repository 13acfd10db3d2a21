//! Sizes that belong to the API, not to a policy: the comments of the protos say the same.
//!
//! Units: bytes, but counts where the name says so.

/// A message without code, in either direction.
pub const MESSAGE_MAX: usize = MIB;
/// The first message of `Run`, and a message of `Execute`: code, inline files and standard input together.
pub const SPEC_MAX: usize = 4 * MIB;
/// The source of code. Policies may ask for less.
pub const CODE_MAX: usize = MIB;
/// Standard input given with the request.
pub const STDIN_MAX: usize = MIB;
/// One input file given with the request.
pub const INLINE_FILE_MAX: usize = 512 * KIB;
/// Data of one `output` event.
pub const OUTPUT_CHUNK_MAX: usize = 64 * KIB;
/// Data of one message that carries a part of a file.
pub const FILE_CHUNK_MAX: usize = 256 * KIB;
/// One rich result in one media type; more becomes an artifact.
pub const RICH_DATUM_MAX: usize = 512 * KIB;
/// All rich results within `finished`; the others came as events only.
pub const FINISHED_RESULTS_MAX: usize = 256 * KIB;
/// Rich results of one execution, a count.
pub const RICH_RESULTS_MAX: usize = 1024;
/// Traceback of an error.
pub const TRACEBACK_MAX: usize = 64 * KIB;
/// Message of an error as it fits a chat; its traceback has all of it.
pub const ERROR_MESSAGE_MAX: usize = KIB;
/// Sentences for people, comments of reviewers, hints.
pub const SENTENCE_MAX: usize = KIB;
/// Input files of one execution, a count.
pub const INPUTS_MAX: usize = 256;
/// The name of an input file, the path of an expected output.
pub const NAME_MAX: usize = KIB;
/// The names of all input files of one execution together.
pub const NAMES_MAX: usize = 64 * KIB;
/// Expected outputs of one execution, a count.
pub const EXPECTED_OUTPUTS_MAX: usize = 64;
/// Arguments of one execution, a count.
pub const ARGUMENTS_MAX: usize = 1024;
/// The arguments, or the environment, of one execution together.
pub const ARGUMENT_BYTES_MAX: usize = 128 * KIB;
/// Environment variables of one execution, a count.
pub const VARIABLES_MAX: usize = 128;
/// A path of the service Files, a working directory.
pub const PATH_MAX: usize = 4 * KIB;
/// Labels of one thing, a count.
pub const LABELS_MAX: usize = 64;
/// The key of a label.
pub const LABEL_KEY_MAX: usize = 63;
/// The value of a label.
pub const LABEL_VALUE_MAX: usize = 256;
/// Each field of an origin.
pub const ORIGIN_MAX: usize = 256;
/// Items on a page where the request doesn't say, a count.
pub const PAGE_DEFAULT: u32 = 100;
/// Items on a page at most, a count.
pub const PAGE_MAX: u32 = 1000;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

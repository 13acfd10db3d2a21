//! What is run in fresh sandboxes.

/// Python code, and what it writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    pub(crate) expected: &'static str,
}

/// What takes nothing but an interpreter.
pub(crate) const PRINT: Work = Work {
    name: "print(1)",
    source: "print(1)",
    expected: "1\n",
};
/// What an analysis begins with.
pub(crate) const PANDAS: Work = Work {
    name: "pandas",
    source: "import pandas, numpy\nprint(pandas.DataFrame({'a': numpy.arange(10)}).a.sum())",
    expected: "45\n",
};

"""Names of the books of the King James Bible, by the abbreviation that the `bible` program prints.

Knows nothing about chapters, text or training.
"""

from __future__ import annotations

_TABLE = (
    "Ge Genesis, Exo Exodus, Lev Leviticus, Num Numbers, Deu Deuteronomy, Josh Joshua, Jdgs Judges, Ruth Ruth, "
    "1Sm 1 Samuel, 2Sm 2 Samuel, 1Ki 1 Kings, 2Ki 2 Kings, 1Chr 1 Chronicles, 2Chr 2 Chronicles, Ezra Ezra, "
    "Neh Nehemiah, Est Esther, Job Job, Psa Psalms, Prv Proverbs, Eccl Ecclesiastes, SSol Song of Solomon, "
    "Isa Isaiah, Jer Jeremiah, Lam Lamentations, Eze Ezekiel, Dan Daniel, Hos Hosea, Joel Joel, Amos Amos, "
    "Obad Obadiah, Jonah Jonah, Mic Micah, Nahum Nahum, Hab Habakkuk, Zep Zephaniah, Hag Haggai, Zec Zechariah, "
    "Mal Malachi, Mat Matthew, Mark Mark, Luke Luke, John John, Acts Acts, Rom Romans, 1Cor 1 Corinthians, "
    "2Cor 2 Corinthians, Gal Galatians, Eph Ephesians, Phi Philippians, Col Colossians, 1Th 1 Thessalonians, "
    "2Th 2 Thessalonians, 1Tim 1 Timothy, 2Tim 2 Timothy, Titus Titus, Phmn Philemon, Heb Hebrews, Jas James, "
    "1Pet 1 Peter, 2Pet 2 Peter, 1Jn 1 John, 2Jn 2 John, 3Jn 3 John, Jude Jude, Rev Revelation"
)

BOOK_NAMES: dict[str, str] = dict(entry.split(" ", 1) for entry in _TABLE.split(", "))

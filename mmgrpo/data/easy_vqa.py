"""The rows of the ``easy-vqa`` package: 64-pixel pictures of one shape, with questions and one-word answers.

The package ships its pictures and questions, so these rows need no network. It is imported when the rows are opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mmgrpo.data.lazy import ListedRows
from mmgrpo.errors import DatasetError, explain


def easy_vqa_rows(split: Literal["train", "test"] = "train") -> ListedRows:
    """Open the questions of one split.

    Args:
        split: "train" has 38,575 questions on 4,000 pictures, "test" 9,673 on 1,000.

    Returns:
        Rows with the columns image (a path inside the package), problem and solution.

    Raises:
        DatasetError: The package is not installed.
    """
    try:
        import easy_vqa
    except ImportError as error:
        raise DatasetError(
            explain("The package easy-vqa is not installed", fix="Run: pip install easy-vqa")
        ) from error
    questions = easy_vqa.get_train_questions() if split == "train" else easy_vqa.get_test_questions()
    pictures = easy_vqa.get_train_image_paths() if split == "train" else easy_vqa.get_test_image_paths()
    base = Path(easy_vqa.__file__).parent
    places = {number: str(Path(path).resolve().relative_to(base.resolve())) for number, path in pictures.items()}
    rows = [
        {"image": places[number], "problem": question, "solution": answer}
        for question, answer, number in zip(*questions, strict=True)
    ]
    return ListedRows(rows, name=f"easy-vqa {split}", base=base)

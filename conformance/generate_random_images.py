"""Cases of `ImageDecoder`: files that Pillow writes, and the pixels that Pillow reads from them."""

import io

import numpy as np
import PIL.Image
from generate_random_case import Case


def image(draw):
    kind = str(draw.choice(["jpeg", "jpeg", "jpeg", "png", "bmp", "ppm", "tiff", "webp", "jpeg2000"]))
    pixels = str(draw.choice(["RGB", "BGR", "Grayscale"]))
    grey = pixels == "Grayscale" and draw.random() < 0.4

    def file(_, sizes):
        height, width = sizes["h"], sizes["w"]
        slopes = np.add.outer(np.arange(height) * 5, np.arange(width) * 3)[:, :, None] * np.array([1, 0.5, 2])
        noise = draw.integers(0, int(draw.choice([2, 30, 200])), (height, width, 3))
        picture = PIL.Image.fromarray(np.clip(slopes + noise, 0, 255).astype(np.uint8))
        if grey:
            picture = picture.convert("L")
        options = {}
        if kind == "jpeg":
            options = {"quality": int(draw.choice([5, 40, 75, 95, 100])), "progressive": draw.random() < 0.4}
            if not grey:
                options["subsampling"] = int(draw.integers(0, 3))
            if draw.random() < 0.3:
                options["restart_marker_blocks"] = int(draw.integers(1, 5))
        elif kind == "tiff":
            options = {"compression": str(draw.choice(["raw", "tiff_lzw", "tiff_adobe_deflate"]))}
        elif kind in ("webp", "jpeg2000"):
            # Formats leave the last bits of a lossy file open.
            options = {"lossless": True} if kind == "webp" else {"irreversible": False}
        with io.BytesIO() as out:
            picture.save(out, kind, **options)
            return np.frombuffer(out.getvalue(), np.uint8)

    case = Case(draw, "ImageDecoder", 20, pixel_format=pixels).symbol("h", 1, 40).symbol("w", 1, 40)
    return case.input(["bytes"], np.uint8, file)


FAMILIES = {"image": (image, 60)}

"""Images: the public namespace `aioflow.image`, after `tf.image` of the TensorFlow 1 API."""

from aioflow.loading.later import load_later as _load_later
from aioflow.ops.image.adjust import adjust_brightness as adjust_brightness
from aioflow.ops.image.adjust import adjust_contrast as adjust_contrast
from aioflow.ops.image.adjust import adjust_gamma as adjust_gamma
from aioflow.ops.image.adjust import central_crop as central_crop
from aioflow.ops.image.adjust import convert_image_dtype as convert_image_dtype
from aioflow.ops.image.adjust import crop_to_bounding_box as crop_to_bounding_box
from aioflow.ops.image.adjust import flip_left_right as flip_left_right
from aioflow.ops.image.adjust import flip_up_down as flip_up_down
from aioflow.ops.image.adjust import grayscale_to_rgb as grayscale_to_rgb
from aioflow.ops.image.adjust import pad_to_bounding_box as pad_to_bounding_box
from aioflow.ops.image.adjust import per_image_standardization as per_image_standardization
from aioflow.ops.image.adjust import random_brightness as random_brightness
from aioflow.ops.image.adjust import random_contrast as random_contrast
from aioflow.ops.image.adjust import random_flip_left_right as random_flip_left_right
from aioflow.ops.image.adjust import random_flip_up_down as random_flip_up_down
from aioflow.ops.image.adjust import resize_image_with_crop_or_pad as resize_image_with_crop_or_pad
from aioflow.ops.image.adjust import resize_image_with_crop_or_pad as resize_with_crop_or_pad
from aioflow.ops.image.adjust import rgb_to_grayscale as rgb_to_grayscale
from aioflow.ops.image.adjust import rot90 as rot90
from aioflow.ops.image.adjust import transpose_image as transpose
from aioflow.ops.image.adjust import transpose_image as transpose_image
from aioflow.ops.image.boxes import draw_bounding_boxes as draw_bounding_boxes
from aioflow.ops.image.boxes import non_max_suppression as non_max_suppression
from aioflow.ops.image.colours import adjust_hue as adjust_hue
from aioflow.ops.image.colours import adjust_saturation as adjust_saturation
from aioflow.ops.image.colours import hsv_to_rgb as hsv_to_rgb
from aioflow.ops.image.colours import random_hue as random_hue
from aioflow.ops.image.colours import random_saturation as random_saturation
from aioflow.ops.image.colours import rgb_to_hsv as rgb_to_hsv
from aioflow.ops.image.colours import rgb_to_yiq as rgb_to_yiq
from aioflow.ops.image.colours import rgb_to_yuv as rgb_to_yuv
from aioflow.ops.image.colours import yiq_to_rgb as yiq_to_rgb
from aioflow.ops.image.colours import yuv_to_rgb as yuv_to_rgb
from aioflow.ops.image.images import crop_and_resize as crop_and_resize
from aioflow.ops.image.images import decode_bmp as decode_bmp
from aioflow.ops.image.images import decode_gif as decode_gif
from aioflow.ops.image.images import decode_image as decode_image
from aioflow.ops.image.images import decode_jpeg as decode_jpeg
from aioflow.ops.image.images import decode_png as decode_png
from aioflow.ops.image.images import encode_jpeg as encode_jpeg
from aioflow.ops.image.images import encode_png as encode_png
from aioflow.ops.image.images import extract_jpeg_shape as extract_jpeg_shape
from aioflow.ops.image.images import is_jpeg as is_jpeg
from aioflow.ops.image.measures import image_gradients as image_gradients
from aioflow.ops.image.measures import psnr as psnr
from aioflow.ops.image.measures import sobel_edges as sobel_edges
from aioflow.ops.image.measures import ssim as ssim
from aioflow.ops.image.measures import ssim_multiscale as ssim_multiscale
from aioflow.ops.image.measures import total_variation as total_variation
from aioflow.ops.image.resizing import ResizeMethod as ResizeMethod
from aioflow.ops.image.resizing import resize_area as resize_area
from aioflow.ops.image.resizing import resize_bicubic as resize_bicubic
from aioflow.ops.image.resizing import resize_bilinear as resize_bilinear
from aioflow.ops.image.resizing import resize_image_with_pad as resize_image_with_pad
from aioflow.ops.image.resizing import resize_images as resize
from aioflow.ops.image.resizing import resize_images as resize_images
from aioflow.ops.image.resizing import resize_nearest_neighbor as resize_nearest_neighbor
from aioflow.ops.math.random import random_crop as random_crop

__all__ = [
    "ResizeMethod",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_gamma",
    "adjust_hue",
    "adjust_saturation",
    "central_crop",
    "convert_image_dtype",
    "crop_and_resize",
    "crop_to_bounding_box",
    "decode_bmp",
    "decode_gif",
    "decode_image",
    "decode_jpeg",
    "decode_png",
    "draw_bounding_boxes",
    "encode_jpeg",
    "encode_png",
    "extract_jpeg_shape",
    "flip_left_right",
    "flip_up_down",
    "grayscale_to_rgb",
    "hsv_to_rgb",
    "image_gradients",
    "is_jpeg",
    "non_max_suppression",
    "pad_to_bounding_box",
    "per_image_standardization",
    "psnr",
    "random_brightness",
    "random_contrast",
    "random_crop",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_hue",
    "random_saturation",
    "resize",
    "resize_area",
    "resize_bicubic",
    "resize_bilinear",
    "resize_image_with_crop_or_pad",
    "resize_image_with_pad",
    "resize_images",
    "resize_nearest_neighbor",
    "resize_with_crop_or_pad",
    "rgb_to_grayscale",
    "rgb_to_hsv",
    "rgb_to_yiq",
    "rgb_to_yuv",
    "rot90",
    "sobel_edges",
    "ssim",
    "ssim_multiscale",
    "total_variation",
    "transpose",
    "transpose_image",
    "yiq_to_rgb",
    "yuv_to_rgb",
]

_load_later(__name__)

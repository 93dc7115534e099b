"""`kubectl kustomize` for what deploy/ uses: resources, images, and patches that are JSON patches or delete an object.

Everything else is refused, so that what is tested here is what kustomize makes of it.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
Key = tuple[str, str, str]


class Unsupported(Exception):
    """kustomize can do this; the renderer, or kustomize itself, cannot."""


def key(obj: Object) -> Key:
    """kind, namespace, name."""
    metadata = obj["metadata"]
    return obj["kind"], metadata.get("namespace", ""), metadata["name"]


def render(directory: Path) -> dict[Key, Object]:
    """The objects of a kustomization. Raises Unsupported."""
    [kustomization] = documents(directory / "kustomization.yaml")
    unknown = kustomization.keys() - {"apiVersion", "kind", "resources", "images", "patches"}
    if unknown or kustomization["kind"] != "Kustomization":
        raise Unsupported(f"{directory}: {sorted(unknown) or kustomization['kind']}")
    objects: dict[Key, Object] = {}
    for name in kustomization.get("resources", ()):
        path = directory / name
        found = render(path.resolve()).values() if path.is_dir() else documents(path)
        for obj in found:
            if objects.setdefault(key(obj), obj) is not obj:
                raise Unsupported(f"{path}: {key(obj)} is there twice")
    for patch in kustomization.get("patches", ()):
        _patch(objects, directory, patch)
    for obj in objects.values():
        _set_images(obj, kustomization.get("images", ()))
    return objects


def documents(path: Path) -> list[Any]:
    """The documents of a YAML file that are not empty."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def _patch(objects: dict[Key, Object], directory: Path, patch: Object) -> None:
    if not patch.keys() <= {"path", "patch", "target"}:
        raise Unsupported(f"{directory}: a patch with {sorted(patch)}")
    [content] = [yaml.safe_load(patch["patch"])] if "patch" in patch else documents(directory / patch["path"])
    if isinstance(content, list):
        target = patch["target"]
        if target.keys() != {"kind", "name"}:
            raise Unsupported(f"{directory}: a target by {sorted(target)}")
        [found] = [k for k in objects if (k[0], k[2]) == (target["kind"], target["name"])]
        objects[found] = json_patch(objects[found], content)
    elif content.keys() == {"apiVersion", "kind", "metadata", "$patch"} and content["$patch"] == "delete":
        del objects[key(content)]
    else:
        raise Unsupported(f"{directory}: a strategic merge patch that does not delete")


def json_patch(obj: Any, operations: list[Object]) -> Any:
    """A changed copy (RFC 6902: test, add, replace, remove)."""
    obj = copy.deepcopy(obj)
    for operation in operations:
        *parents, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        place = obj
        for step in parents:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if isinstance(place, list):
            if (operation["op"], last) != ("add", "-"):
                raise Unsupported(f"{operation['path']}: not at the end of the list")
            place.append(operation["value"])
            continue
        match operation["op"]:
            case "test":
                if place[last] != operation["value"]:
                    raise Unsupported(f"{operation['path']} is {place[last]!r}, not {operation['value']!r}")
            case "replace":
                if last not in place:
                    raise Unsupported(f"{operation['path']}: nothing to replace")
                place[last] = operation["value"]
            case "add":
                place[last] = operation["value"]
            case "remove":
                del place[last]
            case other:
                raise Unsupported(other)
    return obj


def _set_images(obj: Object, images: list[Object]) -> None:
    for container in obj.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
        name, _, tag = container["image"].partition(":")
        for image in images:
            if not image.keys() <= {"name", "newName", "newTag"}:
                raise Unsupported(f"an image with {sorted(image)}")
            if image["name"] == name:
                tag = image.get("newTag", tag)
                container["image"] = image.get("newName", name) + (f":{tag}" if tag else "")

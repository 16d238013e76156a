"""For mkdocs.yml: README is the home page, its list of pages the navigation; links to code lead to the repository."""

import re
from os.path import basename, dirname, exists, isdir, join, normpath, relpath
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
LISTED = re.compile(r"\[([^\]]+)\]\(docs/([^)#]+\.md)\)")


def number(page):
    """Of a page, by its file's name: 16. for 16_int4_linear.md, 16b. for 16b_int4_many_rows.md, nothing for others."""
    found = re.match(r"\d+[a-z]?(?=_)", basename(page))
    return f"{found[0]}. " if found else ""


def on_config(config):
    readme, config.nav = (ROOT / "README.md").read_text(), [{"Home": "README.md"}]
    for part, text in re.findall(r"^(?:\*\*(.+)\*\*\n\n|Also: )((?:.+\n)+)", readme, re.MULTILINE):
        pages = [{number(page) + title[0].upper() + title[1:]: page} for title, page in LISTED.findall(text)]
        config.nav.append({part or "Also": pages})
    translated = sorted(path.name for path in ROOT.glob("docs/*.zh-CN.md"))
    config.nav += [{"Measurements": "results/README.md"}, {"中文": ["README.zh-CN.md", *translated]}]


def on_files(files, config):
    for name in ("README.md", "README.zh-CN.md"):
        files.append(File(name, str(ROOT), config.site_dir, use_directory_urls=False))


def on_page_markdown(markdown, page, config, files):
    uris = {file.abs_src_path: file.src_uri for file in files if file.inclusion.is_included()}

    def lead(link):
        path, mark, anchor = link[2].partition("#")
        target = normpath(join(dirname(page.file.abs_src_path), path))
        if not path or not exists(target):  # mkdocs then warns of a path that leads nowhere
            return link[0]
        if target in uris:
            return link[1] + relpath(uris[target], dirname(page.file.src_uri) or ".") + mark + anchor
        kind = "tree" if isdir(target) else "blob"
        base = f"{config.repo_url}/{kind}/{config.extra['ref']}" if config.repo_url else ROOT.as_uri()
        return f"{link[1]}{base}/{relpath(target, ROOT)}{mark}{anchor}"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)  # text, code, text, ...
    parts[::2] = [re.sub(r'(\]\(|src=")([^)"]+)', lead, part) for part in parts[::2]]
    markdown = re.sub(r"^```(\w+) \w+\n", r"```\1\n", "".join(parts), flags=re.MULTILINE)  # marks for the tests
    markdown = re.sub(r"\A# ", f"# {number(page.file.src_uri)}", markdown)
    return markdown.replace("<details>", "<details markdown>")


def on_post_page(output, page, config):
    return output.replace('lang="en"', 'lang="zh-CN"', 1) if ".zh-CN" in page.file.src_uri else output

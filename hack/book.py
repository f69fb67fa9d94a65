# SPDX-License-Identifier: Apache-2.0
"""What mkdocs can't do by itself (hooks of mkdocs.yml): tables that a telephone shows, names that are not broken in their middle,
and a result of the search for each row that has an anchor, such as a field or a reason."""
import html
import json
import os
import re

rows = []  # (address, title, text) of each row with an anchor


def text_of(cell):
    return html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()


def on_page_content(content, page, **_):
    return re.sub(r"<table>.*?</table>", lambda m: table(m.group(), page.url), content, flags=re.S)


def table(source, url):
    heads = [text_of(h) for h in re.findall(r"<th[^>]*>(.*?)</th>", source, re.S)]
    if not any(heads):
        source = re.sub(r"<thead>.*?</thead>", "", source, flags=re.S)
    source = re.sub(r"<tr>(.*?)</tr>", lambda m: row(m.group(1), heads, url), source, flags=re.S)
    # A short name stays whole. A long path breaks before a dot.
    source = re.sub(r"<code>([^<\s]{1,32})</code>", r'<code class="name">\1</code>', source)
    source = re.sub(r"<code>([^<\s]{33,})</code>", lambda m: "<code>" + m.group(1).replace(".", "<wbr>.") + "</code>", source)
    return source.replace("<table>", f'<table data-columns="{len(heads)}">', 1)


def row(source, heads, url):
    cells = re.findall(r"<td[^>]*>.*?</td>", source, re.S)
    if not cells:
        return f"<tr>{source}</tr>"
    for i, cell in enumerate(cells):
        label = html.escape(heads[i]) if i < len(heads) else ""
        cells[i] = cell.replace("<td", f'<td data-label="{label}"', 1)
    anchor = re.search(r'<a id="([^"]+)"></a>(<code>.*?</code>)', cells[0])
    if anchor:
        identity, name = anchor.groups()
        cells[0] = cells[0].replace(anchor.group(), f'<a class="row" id="{identity}" href="#{identity}">{name}</a>')
        title = text_of(name)
        if "." in title:  # search finds whole words
            title = f"{title.rsplit('.', 1)[1]} ({identity})"
        rows.append((f"{url}#{identity}", title, " ".join(text_of(c) for c in cells[1:])))
    return f"<tr>{''.join(cells)}</tr>"


def on_post_build(config, **_):
    path = os.path.join(config["site_dir"], "search", "search_index.json")
    with open(path, encoding="utf-8") as f:
        index = json.load(f)
    pages = {address.split("#")[0] for address, _, _ in rows}
    for entry in index["docs"]:
        if entry["location"].split("#")[0] in pages:  # the rows have entries of their own
            entry["text"] = entry["text"][:500]
    index["docs"] += [{"location": a, "title": t, "text": x} for a, t, x in rows]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(index, f, sort_keys=True, separators=(",", ":"))


def on_post_page(output, **_):
    # The theme would ask GitHub for the number of stars: the book fetches nothing from elsewhere.
    return output.replace(' data-md-component="source"', "")

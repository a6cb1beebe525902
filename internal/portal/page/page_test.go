// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestPageLoadsOnlyItsOwnFiles(t *testing.T) {
	mux := http.NewServeMux()
	Register(mux)
	ask := func(path, tag string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("If-None-Match", tag)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	if w := ask("/", ""); w.Code != http.StatusFound || w.Header().Get("Location") != Path {
		t.Errorf("the root got %d to %q, want a redirect to the page", w.Code, w.Header().Get("Location"))
	}
	for path, kind := range map[string]string{"": "text/html", "style.css": "text/css",
		"app.js": "text/javascript", "third_party/preact.js": "text/javascript", "core/kinds.js": "text/javascript",
		"icon.svg": "image/svg+xml", "index.html": "text/html", "third_party/LICENSES.txt": "text/plain"} {
		w := ask(Path+path, "")
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) || w.Body.Len() == 0 {
			t.Errorf("%q got %d %q", path, w.Code, w.Header())
		}
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(w.Header().Get("Content-Security-Policy"), want) {
				t.Errorf("%q: the policy %q has no %s", path, w.Header().Get("Content-Security-Policy"), want)
			}
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, Path+path, nil)
		r.Header.Set("Accept-Encoding", "gzip, br")
		packed := httptest.NewRecorder()
		mux.ServeHTTP(packed, r)
		unpacked, err := gzip.NewReader(packed.Body)
		if err != nil {
			t.Fatalf("%q is not compressed for a browser that accepts it: %v", path, err)
		}
		if content, err := io.ReadAll(unpacked); err != nil || !bytes.Equal(content, w.Body.Bytes()) {
			t.Errorf("%q has another content when it is compressed (%v)", path, err)
		}
		if packed.Header().Get("ETag") == w.Header().Get("ETag") || packed.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q has the headers %q when it is compressed", path, packed.Header())
		}
		if again := ask(Path+path, w.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%q got %d although it has not changed, want 304", path, again.Code)
		}
	}
	for _, path := range []string{Path + "page.go", Path + "..%2fpage.go", "/ui", Path + "static/app.js",
		Path + "third_party/", Path + "style"} {
		if w := ask(path, ""); w.Code == http.StatusOK {
			t.Errorf("%q got %.60q", path, w.Body)
		}
	}
}

// own calls a function with each file of the page that is not vendored.
func own(t *testing.T, f func(name string, content []byte)) {
	t.Helper()
	err := fs.WalkDir(static, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasPrefix(name, "static/third_party/") {
			return err
		}
		content, err := fs.ReadFile(static, name)
		f(strings.TrimPrefix(name, "static/"), content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPageStaysSmall checks that the page consists of plain modules, sets no text as HTML, and has at most 6,000 lines
// of its own and 150 kB in compressed form.
func TestPageStaysSmall(t *testing.T) {
	lines, size := 0, 0
	unsafe := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|` +
		`setAttribute\(|document\.cookie|dangerouslySet|srcdoc|DOMParser|https?://[a-z]+\.[a-z]`)
	stores := regexp.MustCompile(`localStorage`)
	own(t, func(name string, content []byte) {
		lines += bytes.Count(content, []byte("\n"))
		if types[path.Ext(name)] == "" && !strings.HasSuffix(name, ".d.ts") {
			t.Errorf("%s has no media type", name)
		}
		if found := unsafe.Find(content); found != nil && name != "icon.svg" {
			t.Errorf("%s has %q", name, found)
		}
		if name != "lib/prefs.js" && stores.Match(content) {
			t.Errorf("%s uses the local storage, want only lib/prefs.js to: it stores nothing about the fleet", name)
		}
		if strings.HasSuffix(name, ".js") && !bytes.HasPrefix(content, []byte("// @ts-check\n")) {
			t.Errorf("%s is not checked for types, want // @ts-check in its first line", name)
		}
	})
	for _, f := range load() {
		size += len(f.compressed)
	}
	t.Logf("%d lines, %d bytes compressed", lines, size)
	if lines > 6000 || size > 150_000 {
		t.Errorf("the page has %d lines and %d bytes compressed, want at most 6,000 and 150,000", lines, size)
	}
}

// TestFoldersImportInOneDirection compares the imports of modules with the table in DESIGN.md.
func TestFoldersImportInOneDirection(t *testing.T) {
	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string][]string{}
	folder, rows := regexp.MustCompile("`([a-z_]+)/`"), regexp.MustCompile("(?m)^\\| `([a-z]+)/` \\| .* \\| (.*) \\|$")
	for _, row := range rows.FindAllStringSubmatch(string(design), -1) {
		allowed[row[1]] = []string{row[1]}
		for _, found := range folder.FindAllStringSubmatch(row[2], -1) {
			allowed[row[1]] = append(allowed[row[1]], found[1])
		}
	}
	imports := regexp.MustCompile(`(?m)^(?:import|export) .*from "(.*)";$`)
	checked := 0
	own(t, func(name string, content []byte) {
		from := path.Dir(name)
		if path.Ext(name) != ".js" || from == "." {
			return // app.js imports from all folders
		}
		for _, found := range imports.FindAllStringSubmatch(string(content), -1) {
			checked++
			if to := path.Dir(path.Join(from, found[1])); !slices.Contains(allowed[from], to) {
				t.Errorf("%s imports %s, want only modules of %q", name, found[1], allowed[from])
			}
		}
	})
	if checked < 100 {
		t.Errorf("found %d imports, want at least 100: does the expression still match?", checked)
	}
}

// TestVendoredLibrariesAreUnchanged compares the vendored modules with the files in their packages. They differ only in
// the names of imported modules, because browsers cannot resolve the names of packages.
func TestVendoredLibrariesAreUnchanged(t *testing.T) {
	sums, err := fs.ReadFile(static, "static/third_party/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	licenses, err := fs.ReadFile(static, "static/third_party/LICENSES.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer(`from"./preact.js"`, `from"preact"`, `from"./hooks.js"`, `from"preact/hooks"`,
		`from"./signals-core.js"`, `from"@preact/signals-core"`)
	known := map[string]bool{"SHA256SUMS": true, "LICENSES.txt": true}
	for line := range strings.Lines(string(sums)) {
		fields := strings.Fields(line) // sum, name, package with version, file in the package
		known[fields[1]] = true
		content, err := fs.ReadFile(static, "static/third_party/"+fields[1])
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(names.Replace(string(content))))
		if got := hex.EncodeToString(sum[:]); got != fields[0] {
			t.Errorf("%s has the checksum %s, want %s of %s in %s", fields[1], got, fields[0], fields[3], fields[2])
		}
		title := "== " + strings.NewReplacer("@preact/", "preact-", "@", "-").Replace(fields[2])
		if !bytes.Contains(licenses, []byte(title+"\n")) {
			t.Errorf("LICENSES.txt has no license %q", title)
		}
	}
	entries, err := fs.ReadDir(static, "static/third_party")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !known[strings.Replace(entry.Name(), ".d.ts", ".js", 1)] {
			t.Errorf("SHA256SUMS does not list %s", entry.Name())
		}
	}
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package page serves the web page for a user's fleet.
//
// The page consists only of static files. It gives users no additional rights.
package page

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/drover-dev/drover/internal/kinds"
)

// Path is the path of the page.
const Path = "/ui/"

// policy is the page's content security policy. It allows the page only to load its own files and to send requests to
// its own hub: no inline scripts, no frames, no forms.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// modules is the placeholder in index.html for links to all modules, so browsers do not have to discover them one by
// one.
const modules = "<!-- modules -->"

// stylesheet is the path of a single file that contains all files in style/. Browsers render nothing until they have
// loaded this file.
const stylesheet = "style.css"

//go:embed static
var static embed.FS

// types maps file name extensions to media types. The operating system may define different media types.
var types = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}

// file holds a served file and the ETag that browsers use to detect changes.
type file struct {
	content, compressed []byte
	kind, tag           string
}

// Register adds the page to a mux, and redirects from the root to it.
func Register(mux *http.ServeMux) {
	files := load()
	mux.Handle("GET /{$}", http.RedirectHandler(Path, http.StatusFound))
	mux.HandleFunc("GET "+Path+"{file...}", func(w http.ResponseWriter, r *http.Request) {
		f, known := files[cmp.Or(r.PathValue("file"), "index.html")]
		if !known {
			http.NotFound(w, r)
			return
		}
		f.serve(w, r)
	})
}

// load returns all files of the page, by path.
func load() map[string]file {
	contents := map[string][]byte{"core/kinds.js": kindsModule()}
	_ = fs.WalkDir(static, "static", func(name string, entry fs.DirEntry, _ error) error { // part of the binary
		if !entry.IsDir() && types[path.Ext(name)] != "" {
			contents[strings.TrimPrefix(name, "static/")], _ = fs.ReadFile(static, name)
		}
		return nil
	})
	var links []byte
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		if path.Ext(name) == ".js" {
			links = fmt.Appendf(links, "<link rel=\"modulepreload\" href=%q>\n", name)
		}
	}
	contents[stylesheet] = nil
	for _, name := range []string{"tokens", "base", "components", "table", "shell", "views"} {
		contents[stylesheet] = append(contents[stylesheet], contents["style/"+name+".css"]...)
		delete(contents, "style/"+name+".css")
	}
	contents["index.html"] = bytes.Replace(contents["index.html"], []byte(modules), links, 1)
	files := make(map[string]file, len(contents))
	for name, content := range contents {
		digest := sha256.Sum256(content)
		files[name] = file{content, compress(content), types[path.Ext(name)], `"` + hex.EncodeToString(digest[:8]) + `"`}
	}
	return files
}

// compress returns the content of a file, compressed with gzip.
func compress(content []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // writing to memory does not fail
	_, _ = w.Write(content)
	_ = w.Close()
	return b.Bytes()
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer") // the address briefly contains an authorization code
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	content, tag := f.content, f.tag
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		content, tag = f.compressed, strings.TrimSuffix(f.tag, `"`)+`z"`
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(content)
}

// kindsModule returns a module with the kinds that the page subscribes to.
func kindsModule() []byte {
	var names []string
	for _, kind := range kinds.All() {
		names = append(names, kind.Resource)
	}
	list, _ := json.Marshal(names) // marshaling strings does not fail
	return fmt.Appendf(nil, "export const kinds = %s;\n", list)
}

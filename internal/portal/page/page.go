// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package page serves the web page for a user's fleet.
//
// The page consists of static files only. It cannot do anything that its user could not do without it.
package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"path"

	"github.com/drover-dev/drover/internal/kinds"
)

// Path is the path of the page.
const Path = "/ui/"

// policy lets the page load its own files and send requests to its own hub, and nothing else: no inline scripts, no
// frames, no forms.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

//go:embed static
var static embed.FS

// types are the media types of files. The operating system may have other media types for them.
var types = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8"}

// file is a served file, with the ETag that browsers use to detect changes.
type file struct {
	content   []byte
	kind, tag string
}

// Register adds the page to a mux, and redirects from the root to it.
func Register(mux *http.ServeMux) {
	files := map[string]file{}
	entries, _ := fs.ReadDir(static, "static") // it is embedded in the program
	add := func(name string, content []byte) {
		digest := sha256.Sum256(content)
		files[name] = file{content, types[path.Ext(name)], `"` + hex.EncodeToString(digest[:8]) + `"`}
	}
	for _, entry := range entries {
		content, _ := fs.ReadFile(static, path.Join("static", entry.Name()))
		add(entry.Name(), content)
	}
	add("kinds.js", kindsModule())
	mux.Handle("GET /{$}", http.RedirectHandler(Path, http.StatusFound))
	mux.HandleFunc("GET "+Path+"{$}", func(w http.ResponseWriter, r *http.Request) { files["index.html"].serve(w, r) })
	mux.HandleFunc("GET "+Path+"{file}", func(w http.ResponseWriter, r *http.Request) {
		f, known := files[r.PathValue("file")]
		if !known {
			http.NotFound(w, r)
			return
		}
		f.serve(w, r)
	})
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer") // the address contains an authorization code for a moment
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.tag)
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(f.content)
}

// kindsModule returns a module with the kinds that the page subscribes to: the namespaced kinds.
func kindsModule() []byte {
	var shown []string
	for _, kind := range kinds.All() {
		if !kind.ClusterScoped {
			shown = append(shown, kind.Resource)
		}
	}
	list, _ := json.Marshal(shown) // marshaling strings does not fail
	return fmt.Appendf(nil, "export const kinds = %s;\n", list)
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/http"
	"strings"
)

// routes maps paths to the handlers for the hub's requests. A path that ends in a slash stands for all paths under it.
// routes is not an http.ServeMux, because a ServeMux cleans paths, and the paths of requests to the API server must
// remain unchanged.
type routes map[string]http.Handler

// ServeHTTP passes a request to the handler for its path.
func (r routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	for path, handler := range r {
		if req.URL.Path == path || strings.HasSuffix(path, "/") && strings.HasPrefix(req.URL.Path, path) {
			handler.ServeHTTP(w, req)
			return
		}
	}
	http.Error(w, "this agent does not know the path: hub and agent may differ in version", http.StatusNotFound)
}

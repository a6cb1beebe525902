// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/http"
	"strings"

	"github.com/drover-dev/drover/internal/protocol"
)

// routes serves the hub's requests. It is not an http.ServeMux, because a ServeMux cleans paths, and the paths of
// requests to the API server must remain unchanged.
type routes struct {
	kubernetes, report, settings, deployment, uninstall, sets, term http.Handler
}

// ServeHTTP passes a request to the handler for its path.
func (r routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch path := req.URL.Path; {
	case strings.HasPrefix(path, protocol.PathKubernetes+"/"):
		r.kubernetes.ServeHTTP(w, req)
	case path == protocol.PathReport:
		r.report.ServeHTTP(w, req)
	case path == protocol.PathSettings:
		r.settings.ServeHTTP(w, req)
	case path == protocol.PathDeployment:
		r.deployment.ServeHTTP(w, req)
	case strings.HasPrefix(path, protocol.PathSets+"/"):
		r.sets.ServeHTTP(w, req)
	case path == protocol.PathTerm:
		r.term.ServeHTTP(w, req)
	case path == protocol.PathUninstall:
		r.uninstall.ServeHTTP(w, req)
	default:
		http.Error(w, "this agent does not know the path: hub and agent may differ in version", http.StatusNotFound)
	}
}

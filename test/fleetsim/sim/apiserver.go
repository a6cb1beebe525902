// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const kubernetesVersion = "v1.36.3+k3s1"

// apiServer serves discovery, and a ConfigMap for each name in each namespace. All members share one apiServer.
type apiServer struct {
	latency time.Duration
	fixed   map[string]string // answers by path
}

func newAPIServer(latency time.Duration) *apiServer {
	return &apiServer{latency: latency, fixed: map[string]string{
		"/version": `{"major":"1","minor":"36","gitVersion":"` + kubernetesVersion + `","platform":"linux/amd64"}`,
		"/api":     `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}`,
		"/apis":    `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1": `{"kind":"APIResourceList","groupVersion":"v1","resources":[` +
			`{"name":"namespaces","singularName":"namespace","namespaced":false,"kind":"Namespace","verbs":["get","list","watch"]},` +
			`{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["get","watch"]}]}`,
		"/api/v1/namespaces": `{"kind":"NamespaceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[` +
			`{"metadata":{"name":"default","uid":"5e1f0f6e-0001"},"status":{"phase":"Active"}},` +
			`{"metadata":{"name":"kube-system","uid":"5e1f0f6e-0002"},"status":{"phase":"Active"}}]}`,
	}}
}

// serve serves a request for a path of the API.
func (s *apiServer) serve(w http.ResponseWriter, r *http.Request, path string) {
	if !wait(r.Context(), s.latency) {
		return
	}
	if len(r.Header.Values("Impersonate-User")) != 1 {
		writeStatus(w, http.StatusForbidden, "Forbidden", "a request must name exactly one user to impersonate")
		return
	}
	if r.Method != http.MethodGet {
		writeStatus(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "simulated clusters are read-only")
		return
	}
	if watch := r.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		serveWatch(w, r)
		return
	}
	if body, ok := s.fixed[path]; ok {
		writeJSON(w, http.StatusOK, body)
		return
	}
	if namespace, name, ok := configMap(path); ok {
		writeJSON(w, http.StatusOK, fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":%q,"name":%q,"resourceVersion":"1"},`+
			`"data":{"key":"value"}}`, namespace, name))
		return
	}
	writeStatus(w, http.StatusNotFound, "NotFound", "simulated clusters have no "+path)
}

// serveWatch serves a watch without events.
func serveWatch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // if it fails, the context has ended
	<-r.Context().Done()
}

// configMap parses a path such as "/api/v1/namespaces/x/configmaps/y".
func configMap(path string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/api/v1/namespaces/")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 || parts[1] != "configmaps" {
		return "", "", false
	}
	return parts[0], parts[2], parts[0] != "" && parts[2] != ""
}

// wait waits for the given time. It returns false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func writeJSON(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body))
}

func writeStatus(w http.ResponseWriter, code int, reason, message string) {
	writeJSON(w, code, fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`,
		message, reason, code))
}

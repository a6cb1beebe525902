// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// APIServer is a fake API server that stores objects in memory. It serves the namespaces, nodes, pods and Secrets of
// the core group, and objects at other paths if a test has put them there. It supports get, list, watch, create,
// update, patch and delete. It responds with JSON, and also reads protobuf.
type APIServer struct {
	// URL is the URL of the server.
	URL string
	// Hook may respond to a request instead of the server, and reports whether it did. It must be set before the first
	// request.
	Hook func(w http.ResponseWriter, r *http.Request) bool

	mu      sync.Mutex // guards the rest
	events  []event    // all that happened; the index + 1 is the resource version
	objects map[string]map[string]any
	changed chan struct{} // closed, and replaced, at each event
	seen    []string
}

// event is a change to an object.
type event struct {
	kind       string
	collection string
	object     map[string]any
}

// NewAPIServer starts an APIServer that has the kube-system namespace, is healthy and reports version v1.36.3. It is
// stopped at the end of the test.
func NewAPIServer(t testing.TB) *APIServer {
	t.Helper()
	s := &APIServer{objects: map[string]map[string]any{}, changed: make(chan struct{})}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s.URL = server.URL
	s.Put(t, "/api/v1/namespaces/kube-system", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "member-uid"}})
	return s
}

// Config returns the client configuration for the server.
func (s *APIServer) Config() *rest.Config { return &rest.Config{Host: s.URL} }

// Put creates or replaces an object at a path.
func (s *APIServer) Put(t testing.TB, path string, object runtime.Object) {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var content map[string]any
	if err := json.Unmarshal(raw, &content); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(path, content)
}

// Get returns the JSON fields of an object, or nil if the object does not exist.
func (s *APIServer) Get(path string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

// Delete deletes an object.
func (s *APIServer) Delete(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(path)
}

// Seen returns the method and path of each request so far.
func (s *APIServer) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

// ServeHTTP serves a request.
func (s *APIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	if s.Hook != nil && s.Hook(w, r) {
		return
	}
	switch {
	case r.URL.Path == "/version":
		answer(w, http.StatusOK, map[string]string{"gitVersion": "v1.36.3"})
	case r.URL.Path == "/readyz":
		_, _ = w.Write([]byte("ok")) // the prober is gone otherwise
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		status, body := s.answer(r)
		answer(w, status, body)
	}
}

func (s *APIServer) answer(r *http.Request) (int, any) {
	path := r.URL.Path
	content, err := decode(r)
	if err != nil {
		return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	current, exists := s.objects[path]
	switch {
	case r.Method == http.MethodGet && collection(path) == "":
		return http.StatusOK, s.list(path, metadataOnly(r))
	case r.Method == http.MethodPost:
		path += "/" + field(content, "name")
		if _, exists := s.objects[path]; exists {
			return failure(http.StatusConflict, metav1.StatusReasonAlreadyExists, path)
		}
		return http.StatusCreated, s.store(path, content)
	case !exists:
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound, path)
	case r.Method == http.MethodPut && field(content, "resourceVersion") != field(current, "resourceVersion"):
		return failure(http.StatusConflict, metav1.StatusReasonConflict, path)
	case r.Method == http.MethodPut:
		return http.StatusOK, s.store(path, content)
	case r.Method == http.MethodPatch:
		return http.StatusOK, s.store(path, merge(current, content))
	case r.Method == http.MethodDelete:
		s.remove(path)
		return http.StatusOK, metav1.Status{Status: metav1.StatusSuccess}
	}
	return http.StatusOK, current
}

func (s *APIServer) store(path string, content map[string]any) map[string]any {
	kind := "MODIFIED"
	if _, ok := s.objects[path]; !ok {
		kind = "ADDED"
	}
	s.objects[path] = content
	s.record(kind, path, content)
	return content
}

func (s *APIServer) remove(path string) {
	content, ok := s.objects[path]
	if !ok {
		return
	}
	delete(s.objects, path)
	s.record("DELETED", path, merge(content, nil))
}

// record records a change and sets the object's resource version.
func (s *APIServer) record(kind, path string, content map[string]any) {
	meta, ok := content["metadata"].(map[string]any)
	if !ok {
		meta = map[string]any{}
		content["metadata"] = meta
	}
	meta["resourceVersion"] = strconv.Itoa(len(s.events) + 1)
	if field(content, "uid") == "" {
		meta["uid"] = fmt.Sprintf("uid-%d", len(s.events)+1)
	}
	content["apiVersion"], content["kind"] = versionOf(path), kindOf(path)
	s.events = append(s.events, event{kind: kind, collection: path[:strings.LastIndex(path, "/")], object: content})
	close(s.changed)
	s.changed = make(chan struct{})
}

// metadataOnly reports whether the client requests only the metadata. The server nevertheless returns the whole object,
// with the kind of the metadata.
func metadataOnly(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

func (s *APIServer) list(path string, metadata bool) any {
	items := []any{}
	for at, object := range s.objects {
		if at[:strings.LastIndex(at, "/")] == path {
			items = append(items, object)
		}
	}
	version, kind := "v1", kindOf(path+"/x")
	if metadata {
		version, kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	return map[string]any{
		"apiVersion": version, "kind": kind + "List", "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(len(s.events))},
	}
}

// watch streams the events after the requested resource version. If no version is requested, it first sends the
// existing objects as added, and then later events. It ignores all field selectors except metadata.name.
func (s *APIServer) watch(w http.ResponseWriter, r *http.Request) {
	version := r.URL.Query().Get("resourceVersion")
	next, _ := strconv.Atoi(version)
	var events []event
	if version == "" {
		events, next = s.present(r.URL.Path)
	}
	name, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	if strings.Contains(name, "=") {
		name = ""
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" { // as an API server does that cannot
		status, body := failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden")
		answer(w, status, body)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	control := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	for {
		for _, e := range append(events, s.since(&next, r.URL.Path)...) {
			if name != "" && field(e.object, "name") != name {
				continue
			}
			if metadataOnly(r) {
				e.object["apiVersion"], e.object["kind"] = "meta.k8s.io/v1", "PartialObjectMetadata"
			}
			if err := encoder.Encode(map[string]any{"type": e.kind, "object": e.object}); err != nil {
				return
			}
		}
		if err := control.Flush(); err != nil {
			return
		}
		events = nil
		select {
		case <-s.after(next):
		case <-r.Context().Done():
			return
		}
	}
}

// present returns the objects in a collection as events, and the index of the next event.
func (s *APIServer) present(collection string) ([]event, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []event
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		if path[:strings.LastIndex(path, "/")] == collection {
			out = append(out, event{kind: "ADDED", collection: collection, object: merge(s.objects[path], nil)})
		}
	}
	return out, len(s.events)
}

// since returns the events in a collection from index next on, and advances next. The events are copies, because
// objects change later.
func (s *APIServer) since(next *int, collection string) []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []event
	for _, e := range s.events[min(*next, len(s.events)):] {
		if e.collection == collection {
			e.object = merge(e.object, nil)
			out = append(out, e)
		}
	}
	*next = len(s.events)
	return out
}

// after returns a channel that is closed when there are more than n events.
func (s *APIServer) after(n int) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) > n {
		done := make(chan struct{})
		close(done)
		return done
	}
	return s.changed
}

// decode decodes the body of a request, in JSON or protobuf, into fields.
func decode(r *http.Request) (map[string]any, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodDelete {
		return nil, nil
	}
	var raw json.RawMessage
	if r.Header.Get("Content-Type") == runtime.ContentTypeProtobuf {
		scheme := runtime.NewScheme()
		if err := errors.Join(corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme)); err != nil {
			return nil, err
		}
		body := new(strings.Builder)
		if _, err := copyLimited(body, r.Body); err != nil {
			return nil, err
		}
		obj, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode([]byte(body.String()), nil, nil)
		if err != nil {
			return nil, err
		}
		if raw, err = json.Marshal(obj); err != nil {
			return nil, err
		}
	} else if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
		return nil, err
	}
	var content map[string]any
	return content, json.Unmarshal(raw, &content)
}

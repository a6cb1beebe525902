// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// apiServer is an in-memory API server of a member with one node. Pods that are evicted or deleted disappear
// immediately.
type apiServer struct {
	mux *http.ServeMux

	mu    sync.Mutex             // guards the rest
	pods  map[string]*corev1.Pod // by namespace and name
	gone  []*corev1.Pod          // in their order; how many there are is the version of the whole
	asked []string               // the pods that were evicted or deleted, and how
}

func newAPIServer(pods []corev1.Pod) *apiServer {
	m := &apiServer{mux: http.NewServeMux(), pods: map[string]*corev1.Pod{}}
	for i := range pods {
		m.pods[pods[i].Namespace+"/"+pods[i].Name] = &pods[i]
	}
	m.mux.HandleFunc("GET /api/v1", m.discover)
	m.mux.HandleFunc("GET /api/v1/pods", m.list)
	m.mux.HandleFunc("GET /api/v1/namespaces/{namespace}/pods/{name}", m.get)
	m.mux.HandleFunc("POST /api/v1/namespaces/{namespace}/pods/{name}/eviction", m.evict)
	m.mux.HandleFunc("DELETE /api/v1/namespaces/{namespace}/pods/{name}", m.remove)
	m.mux.HandleFunc("GET /apis/apps/v1/namespaces/{namespace}/daemonsets/{name}", m.daemonSet)
	return m
}

// RoundTrip responds without using a network.
func (m *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	m.mux.ServeHTTP(answer, r)
	return answer.Result(), nil
}

// evicted returns the pods that were evicted or deleted, and which of the two happened.
func (m *apiServer) evicted() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(slices.Values(m.asked))
}

func (m *apiServer) discover(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods/eviction", Kind: "Eviction", Group: "policy", Version: "v1", Namespaced: true},
	}})
}

func (m *apiServer) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil || query.Get("fieldSelector") != "spec.nodeName="+node {
		write(w, http.StatusBadRequest, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest, Message: r.URL.RawQuery})
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if query.Get("watch") != "" {
		m.watch(w, query.Get("resourceVersion"))
		return
	}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	list.ResourceVersion = strconv.Itoa(len(m.gone))
	for _, key := range slices.Sorted(maps.Keys(m.pods)) {
		if p := m.pods[key]; selector.Matches(labels.Set(p.Labels)) {
			list.Items = append(list.Items, *p)
		}
	}
	write(w, http.StatusOK, list)
}

// watch sends the deletions since a version, and then ends. It must be called with mu held.
func (m *apiServer) watch(w http.ResponseWriter, since string) {
	from, err := strconv.Atoi(since)
	if err != nil {
		write(w, http.StatusBadRequest, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest, Message: since})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	for _, pod := range m.gone[from:] {
		raw, err := json.Marshal(pod)
		if err != nil {
			panic(err)
		}
		_, _ = fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", watch.Deleted, raw)
	}
}

func (m *apiServer) get(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pod, there := m.pods[key(r)]; there {
		write(w, http.StatusOK, pod)
		return
	}
	notFound(w, r)
}

func (m *apiServer) evict(w http.ResponseWriter, r *http.Request) {
	eviction := policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{}}
	read(r, &eviction)
	m.leave(w, r, "evict", *eviction.DeleteOptions)
}

func (m *apiServer) remove(w http.ResponseWriter, r *http.Request) {
	options := metav1.DeleteOptions{}
	read(r, &options)
	m.leave(w, r, "delete", options)
}

func (m *apiServer) leave(w http.ResponseWriter, r *http.Request, how string, options metav1.DeleteOptions) {
	grace := "its own grace"
	if options.GracePeriodSeconds != nil {
		grace = strconv.FormatInt(*options.GracePeriodSeconds, 10) + " s"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	pod, there := m.pods[key(r)]
	if !there {
		notFound(w, r)
		return
	}
	delete(m.pods, key(r))
	pod.ResourceVersion = strconv.Itoa(len(m.gone) + 1)
	m.gone = append(m.gone, pod)
	m.asked = append(m.asked, how+" "+key(r)+" with "+grace)
	write(w, http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
}

func (m *apiServer) daemonSet(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("name") == missing {
		notFound(w, r)
		return
	}
	meta := metav1.ObjectMeta{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata;") {
		write(w, http.StatusOK, metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"}, ObjectMeta: meta,
		})
		return
	}
	write(w, http.StatusOK, appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: meta})
}

func key(r *http.Request) string { return r.PathValue("namespace") + "/" + r.PathValue("name") }

func notFound(w http.ResponseWriter, r *http.Request) {
	write(w, http.StatusNotFound, metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: key(r) + " not found",
	})
}

func write(w http.ResponseWriter, code int, answer any) {
	if s, is := answer.(metav1.Status); is {
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer = s
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		panic(err)
	}
}

// read decodes the body of a request, which is JSON or Protobuf, or empty.
func read(r *http.Request, into runtime.Object) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	if len(body) == 0 {
		return
	}
	if err := runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), body, into); err != nil {
		panic(err)
	}
}

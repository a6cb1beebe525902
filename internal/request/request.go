// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package request interprets requests to a Kubernetes API, records their outcome, and ends them.
package request

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Info describes what a request does. It is derived in the same way as in kube-apiserver's RequestInfoFactory, so
// limits, audit and metrics use the same terms as the audit log of the API server that receives the request. Info is
// not used for access decisions, because the API server interprets each request itself. For a path that is not a
// resource, such as /version or /apis, only Path and Verb are set.
type Info struct {
	// Path is the decoded path in the Kubernetes API.
	Path string
	// Verb is the RBAC verb: get, list, watch, create, update, patch, delete or deletecollection. For a path that is
	// not a resource, it is the method in lower case. For an unknown method, it is "".
	Verb string
	// Group is the API group. It is empty for the core group. Version is the version of the group.
	Group, Version string
	// Namespace is empty for cluster-scoped objects. For a Namespace object, it is the object's own name.
	Namespace string
	// Resource is the plural name that the path contains. It is empty for a path that is not a resource.
	Resource string
	// Subresource is the subresource, such as "log", or empty.
	Subresource string
	// Name is the name of the object. It is empty for a collection.
	Name string
	// Long reports whether the request is long-running. Long-running requests are watches, followed logs, exec,
	// attach, port forwards, requests that are proxied to a workload, and all upgrades.
	Long bool
}

// Of describes a request. The path argument is the decoded path in the Kubernetes API behind the hub. Everything else
// comes from r.
func Of(r *http.Request, path string) Info {
	i := Info{Path: path, Verb: plainVerb(r.Method)}
	query := lazyQuery{raw: r.URL.RawQuery}
	if i.readPath(r.Method) {
		i.readVerb(&query)
	}
	i.Long = IsUpgrade(r.Header) || i.lasts(&query)
	return i
}

// plainVerb returns the verb for a path that is not a resource.
func plainVerb(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return strings.ToLower(method)
	}
	return ""
}

// readPath determines which resource the path refers to, and reports whether it refers to one.
func (i *Info) readPath(method string) bool {
	parts := split(i.Path)
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		i.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		i.Group, i.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return false
	}
	i.Verb = resourceVerb(method)
	if parts[0] == "watch" || parts[0] == "proxy" { // deprecated path formats that API servers still accept
		if len(parts) == 1 {
			i.Verb, i.Group, i.Version = plainVerb(method), "", ""
			return false
		}
		i.Verb, parts = parts[0], parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		i.Namespace = parts[1]
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	i.Resource = parts[0]
	if len(parts) > 1 {
		i.Name = parts[1]
	}
	if len(parts) > 2 {
		i.Subresource = parts[2]
	}
	return true
}

func split(path string) []string {
	path = strings.Trim(path, "/")
	if path == "" {
		return nil
	}
	return strings.SplitN(path, "/", 8) // the part after the subresource is ignored
}

func resourceVerb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// readVerb distinguishes collections from objects.
func (i *Info) readVerb(query *lazyQuery) {
	if i.Name != "" {
		return
	}
	switch i.Verb {
	case "get":
		i.Verb = "list"
		if query.truth("watch") {
			i.Verb = "watch"
		}
	case "delete":
		i.Verb = "deletecollection"
	}
	if i.Verb == "list" || i.Verb == "watch" || i.Verb == "deletecollection" {
		i.Name = selectedName(query.get("fieldSelector"))
	}
}

// selectedName returns the only name that a field selector selects, or "" if it may select several.
func selectedName(selector string) string {
	for requirement := range strings.SplitSeq(selector, ",") {
		rest, ok := strings.CutPrefix(requirement, "metadata.name=")
		if ok && !strings.ContainsAny(rest, `\/`) {
			return strings.TrimPrefix(rest, "=")
		}
	}
	return ""
}

// lasts reports whether a request is long-running.
func (i *Info) lasts(query *lazyQuery) bool {
	switch {
	case i.Verb == "watch", i.Verb == "proxy":
		return true
	case i.Resource == "":
		return false
	case i.Subresource == "log":
		return query.truth("follow")
	}
	return slices.Contains([]string{"exec", "attach", "portforward", "proxy"}, i.Subresource)
}

// IsUpgrade reports whether a header contains a request to switch protocols.
func IsUpgrade(h http.Header) bool {
	return len(h["Upgrade"]) > 0 && httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade")
}

// lazyQuery parses a query when it is first needed. Most requests have no query.
type lazyQuery struct {
	raw    string
	values url.Values
}

func (q *lazyQuery) get(name string) string {
	if q.raw == "" {
		return ""
	}
	q.parse()
	return q.values.Get(name)
}

func (q *lazyQuery) truth(name string) bool {
	if q.raw == "" {
		return false
	}
	q.parse()
	return BoolParameter(q.values[name])
}

// BoolParameter interprets the values of a boolean parameter in the same way as API servers do. The parameter is true
// if it is present and is neither false nor 0. An empty value counts as true.
func BoolParameter(values []string) bool {
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

func (q *lazyQuery) parse() {
	if q.values == nil {
		q.values, _ = url.ParseQuery(q.raw) // like API servers, ignore parameters that cannot be parsed
	}
}

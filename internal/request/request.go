// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package request knows a request to a Kubernetes API on its way: what it does, how it was answered, and how it is
// brought to its end.
package request

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Info is what a request does. It is read as kube-apiserver's RequestInfoFactory does it, so that limits, audit and
// metrics use the same words as the audit log of the API server behind. It judges nothing: an API server decides by
// itself what a request is. For a path that is no resource (/version, /apis) only Path and Verb are set.
type Info struct {
	// Path in the Kubernetes API, decoded.
	Path string
	// Verb as RBAC has it: get, list, watch, create, update, patch, delete, deletecollection. For paths that are no
	// resource it is the method in lower case. An unknown method is "".
	Verb string
	// Group of the API, empty for the core group, and its Version.
	Group, Version string
	// Namespace is empty for what has none. A namespace itself is in its own Namespace.
	Namespace string
	// Resource in the plural, as in the path; empty for a path that is no resource.
	Resource string
	// Subresource such as "log", or empty.
	Subresource string
	// Name of the object, empty for a collection.
	Name string
	// Long reports whether it is meant to last: a watch, logs that are followed, an exec, an attach, a port forward,
	// something proxied to a workload, and anything that upgrades.
	Long bool
}

// Of reads a request. path is the path in the Kubernetes API behind the hub, decoded; the rest is as in r.
func Of(r *http.Request, path string) Info {
	i := Info{Path: path, Verb: plainVerb(r.Method)}
	query := lazyQuery{raw: r.URL.RawQuery}
	if i.readPath(r.Method) {
		i.readVerb(&query)
	}
	i.Long = IsUpgrade(r.Header) || i.lasts(&query)
	return i
}

// plainVerb is the verb on a path that is no resource.
func plainVerb(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return strings.ToLower(method)
	}
	return ""
}

// readPath finds out which resource the path names, and reports whether there is one.
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
	if parts[0] == "watch" || parts[0] == "proxy" { // deprecated forms, which API servers still take
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
	return strings.SplitN(path, "/", 8) // nothing behind the subresource is looked at
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

// selectedName is the one name that a field selector leaves, or empty.
func selectedName(selector string) string {
	for requirement := range strings.SplitSeq(selector, ",") {
		rest, ok := strings.CutPrefix(requirement, "metadata.name=")
		if ok && !strings.ContainsAny(rest, `\/`) {
			return strings.TrimPrefix(rest, "=")
		}
	}
	return ""
}

// lasts reports whether such a request is long by its nature.
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

// IsUpgrade reports whether a request with that header asks to switch protocols.
func IsUpgrade(h http.Header) bool {
	return len(h["Upgrade"]) > 0 && httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade")
}

// lazyQuery parses a query when it is first needed: most requests have none.
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

// BoolParameter reads the values of a boolean parameter as API servers do: there, and neither false nor 0. Empty is
// true.
func BoolParameter(values []string) bool {
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

func (q *lazyQuery) parse() {
	if q.values == nil {
		q.values, _ = url.ParseQuery(q.raw) // what cannot be parsed is not there, as for API servers
	}
}

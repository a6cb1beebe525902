// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/url"
	"path"
	"strings"
)

// relocate makes of a Location in an answer one that leads to the same place through the hub. Clients follow redirects
// with their token, some of them with method and body too: a member could send its users' requests to another member or
// to the hub. So whatever leads out of the API behind the prefix is refused.
func (t target) relocate(location string) (string, bool) {
	u, err := url.Parse(location)
	if err != nil || u.Opaque != "" || u.User != nil || strings.Contains(u.Path, `\`) {
		return "", false
	}
	if (u.Scheme != "" || u.Host != "") && !strings.HasPrefix(u.Path, "/api/") && !strings.HasPrefix(u.Path, "/apis/") {
		return "", false // an API server redirects by its own address to its own paths only; workloads behind it may try others
	}
	there := u.Path
	switch {
	case there == "":
		there = t.path
	case there[0] != '/':
		there = t.path[:strings.LastIndexByte(t.path, '/')+1] + there
	}
	clean := path.Clean(there) // begins with a slash, and has no ".." left to leave the prefix with
	if strings.HasSuffix(there, "/") && clean != "/" {
		clean += "/"
	}
	out := url.URL{Path: t.prefix + clean, RawQuery: u.RawQuery, Fragment: u.Fragment}
	return out.String(), true
}

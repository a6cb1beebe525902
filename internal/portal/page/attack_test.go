// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"testing"
)

// TestLinksCannotInjectIntoCommands follows links of an attacker, who wants the user to copy a command to a shell.
func TestLinksCannotInjectIntoCommands(t *testing.T) {
	_, p := withAccess(t)
	const shown = `document.querySelector("main .command pre")?.textContent ?? "none"`
	for _, tt := range []struct{ query, want string }{
		{"who=github:bob&verb=list&resource=pods", "kubectl drover why github:bob list pods --cluster team/c0001"},
		{"who=a;id%20%23'&verb=get;id&resource=pods&namespace=$(id)%0Aid",
			`kubectl drover why 'a;id #'\''' get pods --cluster team/c0001 -n '$(id)id'`},
		{"who=--kubeconfig=/tmp/x&resource=pods", "none"},
	} {
		at(p, "#/")
		at(p, "#/access/why?cluster=team/c0001&"+tt.query)
		activate(t, p, "main button", "Ask")
		sees(t, p, "heading: Who else may do it")
		eventually(t, p, shown, tt.want)
	}
	at(p, "#/clusters/team/x;id")
	sees(t, p, "StaticText: This Cluster is gone")
	press(p, "k", true)
	sees(t, p, "dialog: Commands", "option: Go to Clusters")
	unseen(t, p, "option: Copy the kubectl command")
	p.Press("Escape")
	at(p, "#/clusters/team/c0001")
	sees(t, p, "heading: c0001")
	press(p, "k", true)
	sees(t, p, "option: Copy the kubectl command for c0001")
}

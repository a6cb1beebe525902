// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/http"
	"testing"
)

func TestAProjectShowsItsQuotaMembersAndNamespaces(t *testing.T) {
	f, p := withAccess(t)
	quota := func(namespace, cpu string) map[string]any {
		return map[string]any{"metadata": map[string]any{"namespace": namespace, "name": "drover-project"},
			"status": map[string]any{"hard": map[string]any{"limits.cpu": "2", "limits.memory": "4Gi"},
				"used": map[string]any{"limits.cpu": cpu, "limits.memory": "1Gi"}}}
	}
	const member = "GET /k8s/clusters/team/c0001/api/v1/"
	name := func(n string) any { return map[string]any{"metadata": map[string]any{"name": n}} }
	f.on(member+"namespaces", always(map[string]any{"items": []any{name("web"), name("db")}}))
	f.on(member+"resourcequotas", always(map[string]any{"items": []any{quota("web", "1500m"), quota("db", "500m")}}))
	at(p, "#/projects")
	sees(t, p, "rowheader: shop", "cell: limits.cpu 8, limits.memory 16Gi")
	at(p, "#/projects/team/shop/usage")
	sees(t, p, "meter: limits.cpu of the project", "cell: web", "cell: 1.5 of 2", "cell: 0.5 of 2", "cell: 1 GiB of 4 GiB")
	eventually(t, p, `document.querySelector("[role=meter]").ariaValueNow`, "25")
	t.Run("a member without rights in the whole cluster sees the project's namespaces", func(t *testing.T) {
		refuse := func(map[string]any) (int, any) { return http.StatusForbidden, map[string]any{"message": "forbidden"} }
		f.on(member+"namespaces", refuse)
		f.on(member+"resourcequotas", refuse)
		f.on(member+"namespaces/web/resourcequotas/drover-project", always(quota("web", "1")))
		f.on(member+"namespaces/db/resourcequotas/drover-project", refuse)
		activate(t, p, "main button", "Refresh")
		sees(t, p, "cell: 1 of 2", "cell: not allowed to see",
			"StaticText: You may not list the namespaces of this cluster")
		f.on(member+"namespaces/db/resourcequotas/drover-project", func(map[string]any) (int, any) {
			return http.StatusBadGateway, map[string]any{"message": "no agent"}
		})
		activate(t, p, "main button", "Refresh")
		sees(t, p, "cell: 1 of 2", "cell: no agent")
		f.on(member+"namespaces/web/resourcequotas/drover-project", func(map[string]any) (int, any) {
			return http.StatusBadGateway, map[string]any{"message": "no agent"}
		})
		activate(t, p, "main button", "Refresh")
		sees(t, p, "alert", "StaticText: The usage is not known.", "StaticText: no agent")
	})
	at(p, "#/projects/team/shop/members")
	sees(t, p, "link: local:alice", "button: Revoke viewer of local:alice", "button: Add a member")
	many := make([]string, 60)
	for i := range many {
		many[i] = fmt.Sprintf("team-%02d", i)
	}
	f.send(object("projects", "team", "wide", map[string]any{"clusterName": "c0001", "namespaces": many}))
	at(p, "#/projects/team/wide")
	sees(t, p, "StaticText: team-49", "StaticText: And 10 more.")
}

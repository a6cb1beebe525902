// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// HeaderServiceAccount of a request under PathKubernetes has the name of a ServiceAccount of the member,
// system:serviceaccount:<namespace>:<name>, which the user of the request asks to act as. The agent asks its API server
// whether the user may. It begins like the headers that name a user, so an agent that does not know it refuses the
// request, and no caller's own reaches the agent.
const HeaderServiceAccount = "Impersonate-Drover-Serviceaccount"

// HeaderImpersonator is the header of the extra, cluster.drover.dev/impersonator, that shows in a member's audit log
// who acts as another user.
const HeaderImpersonator = "Impersonate-Extra-Cluster.drover.dev%2fimpersonator"

// prefixServiceAccount precedes namespace and name in the name of a user that is a ServiceAccount.
const prefixServiceAccount = "system:serviceaccount:"

// ServiceAccount is a ServiceAccount of a member.
type ServiceAccount struct{ Namespace, Name string }

// ParseServiceAccount returns the ServiceAccount that a user's name stands for, and whether it is one.
func ParseServiceAccount(user string) (ServiceAccount, bool) {
	rest, found := strings.CutPrefix(user, prefixServiceAccount)
	namespace, name, both := strings.Cut(rest, ":")
	ok := found && both &&
		len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
	return ServiceAccount{namespace, name}, ok
}

// User returns the name by which an API server knows the account.
func (a ServiceAccount) User() string { return prefixServiceAccount + a.Namespace + ":" + a.Name }

// Reserved reports whether the account is in a namespace of Drover's own: of the agent, of Plans, or of the manager
// where the hub is the member. No one acts as one of these: the agent's account may act as every user.
func (a ServiceAccount) Reserved() bool {
	return a.Namespace == "drover" || strings.HasPrefix(a.Namespace, "drover-")
}

// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// HeaderServiceAccount is a header of a request under PathKubernetes. It names a ServiceAccount of the member,
// system:serviceaccount:<namespace>:<name>, that the user of the request wants to impersonate. The agent checks with
// its API server whether the user may do so. The header has the same prefix as the headers that name a user. Therefore
// an agent that does not support it refuses the request, and a caller's own header never reaches the agent.
const HeaderServiceAccount = "Impersonate-Drover-Serviceaccount"

// HeaderImpersonator is the header for the extra field cluster.drover.dev/impersonator. It shows in a member's audit
// log which user acts as another one.
const HeaderImpersonator = "Impersonate-Extra-Cluster.drover.dev%2fimpersonator"

// prefixServiceAccount precedes the namespace and the name in the user name of a ServiceAccount.
const prefixServiceAccount = "system:serviceaccount:"

// ServiceAccount identifies a ServiceAccount of a member.
type ServiceAccount struct{ Namespace, Name string }

// ParseServiceAccount returns the ServiceAccount that a user name stands for, and false if it stands for none.
func ParseServiceAccount(user string) (ServiceAccount, bool) {
	rest, found := strings.CutPrefix(user, prefixServiceAccount)
	namespace, name, both := strings.Cut(rest, ":")
	ok := found && both &&
		len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
	return ServiceAccount{namespace, name}, ok
}

// User returns the account's user name at an API server.
func (a ServiceAccount) User() string { return prefixServiceAccount + a.Namespace + ":" + a.Name }

// Reserved reports whether the account is in one of Drover's namespaces: of the agent, of Plans, or of the manager if
// the hub is the member. No user may act as such an account, because the agent's account may act as every user.
func (a ServiceAccount) Reserved() bool {
	return a.Namespace == "drover" || strings.HasPrefix(a.Namespace, "drover-")
}

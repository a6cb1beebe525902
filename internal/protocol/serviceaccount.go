// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// HeaderServiceAccount is a header in requests under PathKubernetes. It contains the name of the ServiceAccount that a
// user wants to impersonate in the member, in the form system:serviceaccount:<namespace>:<name>. The agent asks its API
// server whether the user may impersonate the ServiceAccount.
//
// The header has the same prefix as the headers that identify a user. As a result, callers cannot set this header, and
// an agent that does not support it refuses the request.
const HeaderServiceAccount = "Impersonate-Drover-Serviceaccount"

// HeaderImpersonator is the header for the extra field cluster.drover.dev/impersonator. In a member's audit log, this
// field shows which user is impersonating another user.
const HeaderImpersonator = "Impersonate-Extra-Cluster.drover.dev%2fimpersonator"

// prefixServiceAccount precedes the namespace and the name in the user name of a ServiceAccount.
const prefixServiceAccount = "system:serviceaccount:"

// ServiceAccount identifies a ServiceAccount in a member.
type ServiceAccount struct{ Namespace, Name string }

// ParseServiceAccount returns the ServiceAccount that a user name represents, or false if it represents none.
func ParseServiceAccount(user string) (ServiceAccount, bool) {
	rest, found := strings.CutPrefix(user, prefixServiceAccount)
	namespace, name, both := strings.Cut(rest, ":")
	ok := found && both &&
		len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
	return ServiceAccount{namespace, name}, ok
}

// User returns the user name that API servers use for the account.
func (a ServiceAccount) User() string { return prefixServiceAccount + a.Namespace + ":" + a.Name }

// Reserved reports whether the account is in one of Drover's namespaces. These are the namespaces of the agent and of
// Plans, and also the manager's namespace if the member is the hub itself. No user may impersonate such an account,
// because the agent's account may impersonate any user.
func (a ServiceAccount) Reserved() bool {
	return a.Namespace == "drover" || strings.HasPrefix(a.Namespace, "drover-")
}

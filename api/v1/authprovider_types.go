// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AuthProvider is where users sign in who are no local Users: an OpenID provider, a directory, or GitHub, or what
// proves who a workload is. Its name precedes those of its users and groups in bindings: "<name>:<user>". It must not
// be what precedes names in the RBAC of a member, such as kubeadm:cluster-admins. Secrets that it names are in the
// manager's namespace, and have the label cluster.drover.dev/secret: provider.
//
// Users may sign in if the manager's configuration has signIn.issuer. Whoever may write AuthProviders decides who is
// whom, also in every member.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=drover,shortName=dap
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.type`
// +kubebuilder:printcolumn:name="Disabled",type=boolean,JSONPath=`.spec.disabled`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63",message="metadata.name must be a DNS label: at most 63 lower-case letters, digits and dashes",fieldPath=.metadata
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['hub', 'system', 'local', 'kubeadm', 'eks'])",message="metadata.name must not be hub, system, local, kubeadm or eks: these precede the names of other users",fieldPath=.metadata
type AuthProvider struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name precedes the names of users and groups.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which provider is asked, and how.
	// +required
	Spec AuthProviderSpec `json:"spec"`

	// status reports whether the provider answers.
	//
	// Ready is True with the reasons Reachable and Disabled; False with SecretMissing, Invalid and Unreachable.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager, whose configuration needs signIn.issuer", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status AuthProviderStatus `json:"status,omitempty"`
}

// AuthProviderList is a list of AuthProviders.
//
// +kubebuilder:object:root=true
type AuthProviderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AuthProvider `json:"items"`
}

// AuthProviderSpec says which provider is asked, and how. It has exactly one of oidc, ldap, github and jwt.
//
// +kubebuilder:validation:XValidation:rule="(has(self.oidc) ? 1 : 0) + (has(self.ldap) ? 1 : 0) + (has(self.github) ? 1 : 0) + (has(self.jwt) ? 1 : 0) == 1",message="exactly one of oidc, ldap, github and jwt must be set"
// +kubebuilder:validation:XValidation:rule="has(self.oidc) == has(oldSelf.oidc) && has(self.ldap) == has(oldSelf.ldap) && has(self.jwt) == has(oldSelf.jwt)",message="the type of a provider cannot be changed: its users would become other ones. Make another AuthProvider"
type AuthProviderSpec struct {
	// disabled refuses the provider's users at once: no login, and no token that they have. Requests that are open end
	// within 30 s. Default false.
	// +optional
	Disabled bool `json:"disabled,omitempty"`

	// oidc is an OpenID provider.
	// +optional
	OIDC *OIDCProvider `json:"oidc,omitempty"`

	// ldap is OpenLDAP, FreeIPA, Active Directory or another directory.
	// +optional
	LDAP *LDAPProvider `json:"ldap,omitempty"`

	// github is github.com or a GitHub Enterprise.
	// +optional
	GitHub *GitHubProvider `json:"github,omitempty"`

	// jwt is an issuer of tokens by which workloads prove who they are: GitHub Actions, GitLab CI, the ServiceAccounts of
	// another cluster.
	// +optional
	JWT *JWTProvider `json:"jwt,omitempty"`
}

// ProviderSecret names a key of a Secret in the manager's namespace that has the label cluster.drover.dev/secret:
// provider.
type ProviderSecret struct {
	// name is that of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Name string `json:"name"`

	// key is that of the Secret's data.
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +kubebuilder:validation:MaxLength=253
	// +required
	Key string `json:"key"`
}

// OIDCProvider is an OpenID provider. It sends users back to <signIn.issuer>/v1/auth/callback/<name>.
type OIDCProvider struct {
	// url is the issuer, whose discovery document is at <url>/.well-known/openid-configuration.
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https://[^\\s/?#@]+(/[^\\s?#]*)?$')`,message="must be an https URL without user, query and fragment"
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	URL string `json:"url"`

	// caBundle are the certificate authorities, in PEM, that the provider's certificates are checked against. Default
	// those of the system.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// clientID is that of the hub at the provider.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	ClientID string `json:"clientID"`

	// clientSecret is that of the hub at the provider.
	// +required
	ClientSecret ProviderSecret `json:"clientSecret"`

	// scopes are asked for besides openid. Add offline_access if the provider gives refresh tokens for it: without a
	// refresh token users sign in again when their tokens end. Google gets access_type=offline instead. Default
	// profile, and offline_access unless scopes_supported of the provider lacks it.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern=`^[!#-\[\]-~]+$`
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	// +optional
	Scopes []string `json:"scopes,omitempty"`

	// prompt is what the provider asks users at each login: login, consent, select_account or several of them, or ""
	// for what it thinks fit. Default consent if refresh tokens are asked for, as OpenID Connect wants it, else "".
	// Providers that do not let users consent refuse consent.
	// +kubebuilder:validation:Pattern=`^((login|consent|select_account)( (login|consent|select_account))*)?$`
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Prompt *string `json:"prompt,omitempty"`

	// lowercaseNames has the capitals A to Z of names become small letters. Set it if the provider compares names
	// without case, as Entra ID does: at any other, one user could take the name of another. Default false: a name with
	// capitals is refused.
	// +optional
	LowercaseNames bool `json:"lowercaseNames,omitempty"`

	// nameClaim has the name of a user, which must be unique at the provider and not be given to another user. Default
	// preferred_username. With email, the provider must say that the address is verified.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	NameClaim string `json:"nameClaim,omitempty"`

	// groupsClaim has the groups of a user: a list of names, or one. Default groups.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	GroupsClaim string `json:"groupsClaim,omitempty"`

	// allowedGroups are those of which a user must be in one. Default: every user of the provider may sign in.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +optional
	AllowedGroups []string `json:"allowedGroups,omitempty"`
}

// LDAPProvider is a directory. There is no connection without TLS.
type LDAPProvider struct {
	// servers are tried in turn: ldaps://host[:port], or ldap://host[:port] with StartTLS.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:XValidation:rule=`self.matches('^ldaps?://[^\\s/?#@]+$')`,message="must be ldaps://<host> or ldap://<host>, with or without a port"
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=atomic
	// +required
	Servers []string `json:"servers"`

	// caBundle are the certificate authorities, in PEM, that the servers' certificates are checked against. Default those
	// of the system.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// bind is the service account with whose rights users are searched.
	// +required
	Bind LDAPBind `json:"bind"`

	// userSearch says how users are found.
	// +required
	UserSearch LDAPUserSearch `json:"userSearch"`

	// groupSearch says how the groups of a user are found.
	// +required
	GroupSearch LDAPGroupSearch `json:"groupSearch"`

	// allowedGroups are those of which a user must be in one. Default: every user who is found may sign in.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +optional
	AllowedGroups []string `json:"allowedGroups,omitempty"`
}

// LDAPBind is a service account of a directory.
type LDAPBind struct {
	// dn is its name: a DN, or what else the server takes, such as drover@example.com for Active Directory.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	DN string `json:"dn"`

	// passwordSecret has its password.
	// +required
	PasswordSecret ProviderSecret `json:"passwordSecret"`
}

// LDAPUserSearch says how users are found.
type LDAPUserSearch struct {
	// base is the DN below which users are.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Base string `json:"base"`

	// filter finds a user by {name}, which is what they typed, escaped, such as (&(objectClass=person)(uid={name})).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Filter string `json:"filter"`

	// idAttribute is never given to another user: entryUUID, ipaUniqueID, objectGUID.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	IDAttribute string `json:"idAttribute"`

	// nameAttribute has the name of the user, which is unique below the base: uid, sAMAccountName. Its value counts in
	// lower case.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	NameAttribute string `json:"nameAttribute"`
}

// LDAPGroupSource is where the groups of a user are read.
//
// +kubebuilder:validation:Enum=TokenGroups;MemberOf;Search
type LDAPGroupSource string

// LDAPGroupSearch says how the groups of a user are found.
//
// +kubebuilder:validation:XValidation:rule="(self.source == 'Search') == has(self.filter)",message="filter belongs to the source Search, which needs it"
type LDAPGroupSearch struct {
	// source is TokenGroups for Active Directory, MemberOf for FreeIPA and for OpenLDAP with the overlay memberof, and
	// Search for all else.
	// +required
	Source LDAPGroupSource `json:"source"`

	// base is the DN below which groups are. Others do not count.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	Base string `json:"base"`

	// filter finds the groups of {dn}, such as (member={dn}). {name} is the name of the user.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	Filter string `json:"filter,omitempty"`

	// nameAttribute has the name of a group, which is unique below the base. Its value counts in lower case. Default cn.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	NameAttribute string `json:"nameAttribute,omitempty"`

	// depth is how many levels of groups in groups are followed. Default 0: the groups that name the user. TokenGroups has
	// all levels.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	// +optional
	Depth int32 `json:"depth,omitempty"`
}

// GitHubProvider is github.com or a GitHub Enterprise, with an OAuth app of the hub, whose callback is
// <signIn.issuer>/v1/auth/callback/<name>.
//
// +kubebuilder:validation:XValidation:rule="has(self.organizations) && size(self.organizations) > 0 || has(self.anyUser) && self.anyUser",message="name the organizations whose members may sign in, or set anyUser"
type GitHubProvider struct {
	// url is that of a GitHub Enterprise. Default https://github.com.
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https://[^\\s/?#@]+/?$')`,message="must be the https URL of a host, without path, user, query and fragment"
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +optional
	URL string `json:"url,omitempty"`

	// caBundle are the certificate authorities, in PEM, that GitHub's certificate is checked against. Default those of the
	// system.
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// clientID is that of the OAuth app.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +required
	ClientID string `json:"clientID"`

	// clientSecret is that of the OAuth app.
	// +required
	ClientSecret ProviderSecret `json:"clientSecret"`

	// organizations are those of which a user must be a member of one. Their names, and those of their teams as
	// organization/team, are the user's groups.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +optional
	Organizations []string `json:"organizations,omitempty"`

	// teams are those, as organization/team, of which a user must be in one. Default: the organization is enough.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +listType=set
	// +optional
	Teams []string `json:"teams,omitempty"`

	// anyUser lets in users of every organization and of none: on github.com, everyone in the world. Default false.
	// +optional
	AnyUser bool `json:"anyUser,omitempty"`
}

// AuthProviderStatus is what the manager knows of a provider.
type AuthProviderStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// type is OIDC, LDAP, GitHub or JWT.
	// +optional
	Type string `json:"type,omitempty"`

	// conditions: Ready, and Stalled when a person must act.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reasons of an AuthProvider's condition Ready, besides ReasonDisabled.
const (
	// ReasonReachable: the provider answers.
	ReasonReachable = "Reachable"
	// ReasonSecretMissing: a Secret that it names does not exist, lacks the key or the label.
	ReasonSecretMissing = "SecretMissing"
	// ReasonInvalid: the spec cannot be used as it is.
	ReasonInvalid = "Invalid"
	// ReasonUnreachable: the provider does not answer, or not as one of its type.
	ReasonUnreachable = "Unreachable"
)

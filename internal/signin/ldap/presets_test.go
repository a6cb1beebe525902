// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

// openLDAP returns settings for a directory of OpenLDAP with the usual schema.
func openLDAP(users, groups string) (Users, Groups) {
	return Users{Base: users, Filter: "(uid={name})", ID: "entryUUID", Name: "uid"},
		Groups{Source: Search, Base: groups, Filter: "(member={dn})", Name: "cn"}
}

// freeIPA returns settings for FreeIPA, whose memberOf includes nested groups.
func freeIPA(users, groups string) (Users, Groups) {
	return Users{Base: users, Filter: "(&(objectClass=posixAccount)(uid={name}))", ID: "ipaUniqueID", Name: "uid"},
		Groups{Source: MemberOf, Base: groups, Name: "cn"}
}

// activeDirectory returns settings for a domain of Active Directory.
func activeDirectory(users, groups string) (Users, Groups) {
	return Users{
			Base: users, Filter: "(&(objectCategory=person)(objectClass=user)(sAMAccountName={name}))",
			ID: objectGUID, Name: "sAMAccountName",
		},
		Groups{Source: TokenGroups, Base: groups, Name: "sAMAccountName"}
}

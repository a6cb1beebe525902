// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Suffix is the base of OpenLDAP's entries. Below it are ou=people, ou=groups and ou=services.
const Suffix = "dc=example,dc=org"

// LimitedDN and LimitedPassword are the credentials of a service account whose searches return at most 500 entries.
const (
	LimitedDN       = "cn=limited,ou=services," + Suffix
	LimitedPassword = "limited secret"
)

// StrictPolicy is the DN of a password policy. A password set by another user must be changed first, and three wrong
// passwords lock the account for an hour.
const StrictPolicy = "cn=strict,ou=services," + Suffix

const slapdConf = `include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb.so
moduleload memberof.so
moduleload ppolicy.so
TLSCACertificateFile {folder}/ca.pem
TLSCertificateFile {folder}/cert.pem
TLSCertificateKeyFile {folder}/key.pem
TLSVerifyClient never
# A password that comes without TLS is refused.
security simple_bind=128
database mdb
suffix "dc=example,dc=org"
rootdn "cn=admin,dc=example,dc=org"
rootpw administrator
directory {folder}/data
maxsize 268435456
dbnosync
index objectClass,uid,cn,mail,member,entryUUID eq
limits dn.exact="cn=drover,ou=services,dc=example,dc=org" size.soft=unlimited size.hard=unlimited size.pr=500 size.prtotal=unlimited
limits dn.exact="cn=limited,ou=services,dc=example,dc=org" size.soft=500 size.hard=500 size.prtotal=500
access to attrs=userPassword by anonymous auth by * none
access to * by dn.onelevel="ou=services,dc=example,dc=org" read by * none
overlay memberof
memberof-refint TRUE
overlay ppolicy
`

const top = `dn: dc=example,dc=org
objectClass: domain
dc: example

dn: ou=people,dc=example,dc=org
objectClass: organizationalUnit
ou: people

dn: ou=groups,dc=example,dc=org
objectClass: organizationalUnit
ou: groups

dn: ou=services,dc=example,dc=org
objectClass: organizationalUnit
ou: services

dn: cn=drover,ou=services,dc=example,dc=org
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: drover
userPassword: service secret

dn: cn=limited,ou=services,dc=example,dc=org
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: limited
userPassword: limited secret

dn: cn=strict,ou=services,dc=example,dc=org
objectClass: organizationalRole
objectClass: pwdPolicy
cn: strict
pwdAttribute: userPassword
pwdMustChange: TRUE
pwdLockout: TRUE
pwdMaxFailure: 3
pwdLockoutDuration: 3600

`

// StartOpenLDAP starts slapd. The entries are in LDIF. Overlays process only the entries that Admin adds later.
func StartOpenLDAP(ctx context.Context, entries string) (*Server, error) {
	installed, err := find("slapd")
	if err != nil {
		return nil, err
	}
	return inFolder(func(folder string) (*Server, error) { return startSlapd(ctx, installed, folder, entries) })
}

func startSlapd(ctx context.Context, installed, folder, entries string) (*Server, error) {
	// A copy of the program is used, because the AppArmor profile would deny the program access to the folder.
	program := filepath.Join(folder, "slapd")
	raw, err := os.ReadFile(installed)
	if err == nil {
		err = os.WriteFile(program, raw, 0o700)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(folder, "data"), 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare slapd: %w", err)
	}
	ca, err := issue(folder, net.IPv4(127, 0, 0, 1))
	if err != nil {
		return nil, err
	}
	conf, ldif := filepath.Join(folder, "slapd.conf"), filepath.Join(folder, "entries.ldif")
	for path, content := range map[string]string{conf: strings.ReplaceAll(slapdConf, "{folder}", folder), ldif: top + entries} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return nil, fmt.Errorf("prepare slapd: %w", err)
		}
	}
	// slapd loads entries if it is run under the name slapadd.
	load := exec.CommandContext(ctx, program, "-T", "add", "-q", "-f", conf, "-l", ldif)
	if output, err := load.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("load entries: %w: %s", err, output)
	}
	for range 5 { // another program may take a port in between
		var ports []int
		if ports, err = freePorts(2); err != nil {
			return nil, err
		}
		s := &Server{
			LDAPS: fmt.Sprintf("ldaps://127.0.0.1:%d", ports[0]), LDAP: fmt.Sprintf("ldap://127.0.0.1:%d", ports[1]), CA: ca,
			BindDN: "cn=drover,ou=services," + Suffix, BindPassword: "service secret", admin: "cn=admin," + Suffix, adminPassword: "administrator",
		}
		if err = s.start(program, "-f", conf, "-h", s.LDAPS+" "+s.LDAP, "-d", "stats"); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// freePorts returns free loopback ports.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a port: %w", err)
		}
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
		if err := listener.Close(); err != nil {
			return nil, fmt.Errorf("find a port: %w", err)
		}
	}
	return ports, nil
}

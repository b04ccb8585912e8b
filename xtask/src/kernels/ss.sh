#!/bin/sh
# Stands in for ss(8) in a guest: IPv4 connections, each with a process that has it open.
{
	ls -l /proc/[0-9]*/fd 2> /dev/null
	cat /proc/net/tcp
} | awk '
function number(hex, at, sum) {
	sum = 0
	for (at = 1; at <= length(hex); at++)
		sum = sum * 16 + index("0123456789ABCDEF", substr(hex, at, 1)) - 1
	return sum
}
# The kernel writes an address as the number that its bytes are on this processor, which is little-endian.
function address(hex) {
	return number(substr(hex, 7, 2)) "." number(substr(hex, 5, 2)) "." number(substr(hex, 3, 2)) "." number(substr(hex, 1, 2)) ":" number(substr(hex, 10))
}
/^\/proc\// { split($1, path, "/"); pid = path[3] }
/socket:\[/ { split($NF, parts, /[][]/); owners[parts[2]] = pid }
$4 == "01" && $10 in owners { print "ESTAB 0 0", address($2), address($3), "users:((\"\",pid=" owners[$10] ",fd=0))" }'

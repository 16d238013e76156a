#include "plan_m.h"
extern "C" void make(int n,int k,int b,unsigned m,Plan* out){mask=m;*out=make_plan(n,k,b,132,true);}
extern "C" void one(int n,int k,int b,unsigned m,Plan* out){mask=m;*out=plan_one(n,k,b,132);}